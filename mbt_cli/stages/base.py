"""What every stage declares: its fields, what it reads, what it writes, and how it runs."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.model import Settings
from mbt_cli.stages.work import Resolution, Work

AxisValues = str | list[str]
"""One value or several of an axis; `@group` stands for the group's names."""


class InputReference(Settings):
    """`{ stage = "base", where = { split = "train" } }`: which cells of which stages to read."""

    stage: str | list[str]
    """Name of an earlier stage, or several whose rows are read as one."""
    where: dict[str, AxisValues] = Field(default_factory=dict)
    """Axis to the values wanted; these axes need not be shared by the two stages."""


StageInput = str | list[str] | InputReference
"""An input: a stage's name, several, or a reference with `where`."""

SamplingChoice = str | dict[str, bool | int | float | str]
"""Name of a `[sampling.NAME]` table, or `{ like = NAME, temperature = 0 }`."""

Keep = Literal["correct", "wrong", "answered", "not_truncated"]
"""Which rows of an input are read; correct = exact match."""


@dataclass(frozen=True, slots=True)
class InputRule:
    """What one input field of a stage may hold.

    Args:
        kinds: Stage kinds whose cells it reads.
        leading: Its cells give the stage its axes.
        many: Any number of cells may match, none too; otherwise exactly one.
        same_rollouts: Only cells that were made from this cell's own rollouts match.
        partial: Cells that are not made yet are left out, and read when they are there.
        with_questions: The questions that its cells are about are read too, as `questions`.
    """

    kinds: tuple[str, ...]
    leading: bool = False
    many: bool = False
    same_rollouts: bool = False
    partial: bool = False
    with_questions: bool = False


class Stage(Settings, ABC):
    """One `[[stage]]` of a manifest for one cell: matrix and variants are already applied."""

    version: ClassVar[int] = 1
    """Raised when the same settings come to give other rows; enters the fingerprint."""
    summary: ClassVar[str]
    """One line for people."""
    axes: ClassVar[tuple[str, ...]] = ()
    """Axes that a cell must have, from the matrix or from the leading input."""
    inputs: ClassVar[Mapping[str, InputRule]] = {}
    """Field to what it may read."""
    reads_questions: ClassVar[bool] = False
    """Whether the questions of the cell's benchmark and split are an input too."""
    models: ClassVar[tuple[str, ...]] = ()
    """Axes or fields that name a model."""
    prompts: ClassVar[tuple[str, ...]] = ()
    """Fields that name a prompt template."""
    placeholders: ClassVar[frozenset[str]] = frozenset()
    """What its templates may hold."""
    needed: ClassVar[tuple[str, ...]] = ()
    """Fields that it cannot run without; a `source` stands in for them."""
    resolved: ClassVar[tuple[str, ...]] = ()
    """Fields that count by what they come to stand for, not as they are written."""

    kind: str
    """Which verb this stage is."""
    name: str
    """Name by which later stages read it; a folder of this name holds its cells."""

    @abstractmethod
    def columns(self, resolution: Resolution) -> pl.Schema:
        """Columns of the rows it writes."""

    def problems(self, read: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        """What is wrong between fields and inputs: field and words.

        Args:
            read: Input field to the kinds of the cells that it reads.
        """
        return iter(())

    @abstractmethod
    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        """The cell's rows, in batches."""
