"""Synthesize: a teacher makes worked solutions, or five-phase traces, from question and answer."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.model import Grows
from mbt_cli.errors import StageError
from mbt_cli.stages.base import InputRule, SamplingChoice, Stage
from mbt_cli.stages.work import Resolution, Work


class SynthesizeStage(Stage):
    """Have a teacher write a solution or a trace for every question."""

    kind: Literal["synthesize"] = "synthesize"
    make: Literal["solution", "mbt_s"]
    """`solution`: a worked answer; `mbt_s`: a five-phase trace from scratch."""
    teacher: str
    """Which model writes."""
    traces_per_question: Annotated[int, Grows] = Field(default=1, ge=1)
    """How many are written for each question."""
    prompt: str | None = None
    """Another template than the one named like `make`."""
    sampling: SamplingChoice | None = None
    """Another sampling than the teacher's own."""

    summary: ClassVar[str] = "have a teacher write solutions or traces"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split")
    inputs: ClassVar[Mapping[str, InputRule]] = {}
    reads_questions: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("teacher",)
    prompts: ClassVar[tuple[str, ...]] = ()
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents", "answer"})

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRACES

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        raise StageError(f"`{self.name}`: this version of mbt cannot run synthesize stages yet")
