"""What a stage is given while it runs one cell."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from mbt_cli.core.chat import Endpoint, Json, Responder
from mbt_cli.core.column_maps import ColumnMap
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.places import ServerPlace
from mbt_cli.core.progress import Progress
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.run_settings import RunSettings
from mbt_cli.core.sampling import Sampling
from mbt_cli.core.templates import Template
from mbt_cli.inference.asking import Asked
from mbt_cli.interfaces import Backend, Benchmark, Judge
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.lineage import Lineage

OpenBackend = Callable[[Backend, ServerPlace], AbstractContextManager[Endpoint | Responder]]

WriteRows = Callable[[pl.DataFrame], None]


def no_rows(frame: pl.DataFrame) -> None:
    """Takes the rows of work that makes none: a shard only asks, a rehearsal does not even that."""
    raise AssertionError(f"{frame.height} rows are made where nobody takes them")


@dataclass(frozen=True, slots=True)
class Model:
    """A `[models.NAME]` table with its preset and sampling filled in.

    Args:
        name: The manifest's name of it.
        id: The endpoint's name for it.
        trained: Address of the train cell whose checkpoint is served, if any.
    """

    name: str
    id: str
    backend: Backend
    sampling: Sampling
    request: Mapping[str, Json]
    run: RunSettings
    trained: str | None = None

    def spec(self) -> Json:
        """What counts for results, for fingerprints and lineage."""
        return {
            "backend": spec_of(self.backend),
            "id": self.id,
            "sampling": spec_of(self.sampling),
            "request": dict(self.request),
        }

    def sampling_body(self) -> dict[str, Json]:
        """Every field of a request that changes the reply, the token limit too."""
        return {
            **self.sampling.body(),
            "max_tokens": self.sampling.max_tokens,
            **self.request,
        }


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the names in one cell stand for.

    Args:
        axes: Axis to value, in the order of the address.
        models: Role (`model`, `teacher`, `judge_model`) to model.
        templates: Prompt field to template.
        inputs: Input field to the addresses that it reads.
        source: What stands in for running the cell.
        source_map: How the source's columns are read, for stages of rows.
        manifest: Text of the manifest, for a report to show.
        recipe: How a model is trained, for train stages.
    """

    study: str
    seed: int
    address: str
    axes: Mapping[str, str]
    models: Mapping[str, Model] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    judge: Judge | None = None
    templates: Mapping[str, Template] = field(default_factory=dict)
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str | None = None
    source_map: ColumnMap | None = None
    recipe: Recipe | None = None
    manifest: str = ""


@dataclass(frozen=True, slots=True)
class LoadedInput:
    """A cell that is read: its rows are lazy, its bytes are checked.

    `lineage` is None in a rehearsal, where questions are made in memory.
    """

    address: str
    axes: Mapping[str, str]
    kind: str
    folder: Path
    rows: pl.LazyFrame
    lineage: Lineage | None


@dataclass(slots=True)
class Outcome:
    """What a stage leaves for the lineage beside its rows."""

    asked: Asked | None = None
    notes: dict[str, Json] = field(default_factory=dict)
    model: Json = None


@dataclass(frozen=True)
class Work:
    """Everything one run of one cell may use.

    Args:
        inputs: Input field to the cells it reads, in the order of their addresses.
        journal: Folder in which replies are kept until the rows are written.
        files: Folder for what is not rows: a summary, a checkpoint, tables.
        place: Where a server's log and caches go, given how the model is run.
        open: A backend's endpoint; a server that already runs is used again.
        write: Takes rows that are ready while others are still asked for; those that the stage
            yields later come after them.
    """

    resolution: Resolution
    inputs: Mapping[str, tuple[LoadedInput, ...]]
    journal: Path
    files: Path
    place: Callable[[RunSettings], ServerPlace]
    open: OpenBackend
    hub: HubAccess
    progress: Progress
    write: WriteRows = no_rows
    retry_failed: bool = False
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def study_folder(self) -> Path:
        """Folder of the whole study, for what tells of all its cells."""
        return self.journal.parents[self.resolution.address.count("/") + 1]

    def input(self, name: str) -> LoadedInput:
        """The one cell behind an input field."""
        (only,) = self.inputs[name]
        return only

    def rows(self, name: str) -> pl.DataFrame:
        """All rows behind an input field."""
        return pl.concat([cell.rows for cell in self.inputs[name]]).collect()

    def lazy(self, name: str) -> pl.LazyFrame:
        """All rows behind an input field, read only when asked for."""
        return pl.concat([cell.rows for cell in self.inputs[name]])
