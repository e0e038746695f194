"""tinyhop: generated multi-hop questions over fictional documents; needs no file and no network.

Q: Where was the author of the novel The Silent Orchard born?   A: Fernbridge
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from mbt_cli.benchmarks.tinyhop.questions import SPLITS, Settings, make_question
from mbt_cli.core.benchmark_files import PerSplit
from mbt_cli.core.chat import Json
from mbt_cli.core.model import Grows
from mbt_cli.core.questions import Question
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Benchmark


class TinyHop(Benchmark):
    """Two- to four-hop questions made by rule; validation has names and wordings of its own."""

    kind: Literal["tinyhop"] = "tinyhop"
    """Names the benchmark in a manifest."""
    seed: int = Field(default=0, ge=0)
    """Another seed makes other questions."""
    size: Annotated[PerSplit, Grows] = Field(default={"train": 2000, "validation": 500})
    """Questions in a split; a larger number adds questions and changes none."""
    hops: tuple[Literal[2, 3, 4], ...] = (2, 3, 4)
    """Numbers of hops that occur, each equally often."""
    documents: int = Field(default=9, ge=4, le=40)
    """Documents in each question."""

    @field_validator("hops")
    @classmethod
    def _some_and_sorted(cls, hops: tuple[int, ...]) -> tuple[int, ...]:
        if not hops:
            raise ValueError("must name at least one number of hops")
        return tuple(sorted(set(hops)))

    def question(self, record: Mapping[str, Json]) -> Question:
        raise ValueError("tinyhop makes its questions; the only files it reads are mbt's own")

    def generate(self, split: str) -> Iterator[Question] | None:
        if self.files:
            return None
        if split not in SPLITS:
            raise UsageError(
                f"tinyhop has no split `{split}`; there are {', '.join(SPLITS)}",
                hint=f'name one of them, or map it: `splits = {{ {split} = "validation" }}`',
            )
        settings = Settings(self.seed, split, self.hops, self.documents)
        size = self.size.get(split, 0) if isinstance(self.size, dict) else self.size
        return (make_question(settings, index) for index in range(size))
