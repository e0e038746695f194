"""Which files and which rows of a data set a study takes; the same for every benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mbt_cli.core.model import Grows, RunOnly, Settings

Count = Annotated[int, Field(ge=1)]
PerSplit = Count | dict[str, Count]
"""One number for every split, or one for each named split."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """Where the hub holds a data set in a layout that its benchmark reads.

    Args:
        repo: Data set repository, `organisation/name`.
        pattern: Path of a split's files in it; `{config}` and `{split}` are filled in, `*` is any
            text. Parquet, JSON lines or a JSON array, by the ending.
        licence: Licence of the data, for data cards.
        config: Configuration that is read unless the manifest names another.
        revision: Commit that is read unless the manifest names another; a branch name is looked up
            and the commit recorded.
        split_names: The study's usual name of a split to the repository's, where they differ.
    """

    repo: str
    pattern: str
    licence: str
    config: str = "default"
    revision: str = "main"
    split_names: Mapping[str, str] = field(default_factory=dict)


class BenchmarkFiles(Settings):
    """Fields of a `[benchmarks.NAME]` table that every kind shares."""

    hub: ClassVar[HubSource | None] = None
    """The official hub repository, for benchmarks that have one."""

    source: Literal["hub"] | None = None
    """`hub` fetches the official repository; left out, `files` says where the rows are."""
    repo: str | None = None
    """Another hub repository in the official layout."""
    config: str | None = None
    """Configuration of the hub repository."""
    revision: str | None = None
    """Commit of the hub repository; left out, the one this mbt was tested with."""
    files: dict[str, str] = Field(default_factory=dict)
    """Split to local file: the official layout, or a questions Parquet that mbt wrote."""
    splits: dict[str, str] = Field(default_factory=dict)
    """The study's name of a split to the source's, such as `{ validation = "test" }`."""
    limit: Annotated[PerSplit | None, Grows] = None
    """First N questions in the official order."""
    sample: Annotated[PerSplit | None, Grows] = None
    """N questions drawn by id with `sample_seed`."""
    sample_seed: int = 0
    """Seed of `sample`."""
    difficulty: str | None = None
    """File with the columns question_id and tier, in place of the benchmark's own tiers."""
    default_tier: Literal["easy", "medium", "hard"] = "medium"
    """Tier of a question that has none."""
    max_bad_rows: Annotated[int, RunOnly] = Field(default=0, ge=0)
    """Malformed rows that may be left out before the stage fails."""
