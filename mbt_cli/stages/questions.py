"""Questions: the implicit first stage, one cell per (benchmark, split)."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import polars as pl

from mbt_cli.core import rows
from mbt_cli.errors import StageError
from mbt_cli.stages.base import Resolution, Stage, Work
from mbt_cli.store.questions import SplitReader

QUESTIONS = "questions"
"""Kind and name of the stage."""
SHOTS = "shots"
"""The input with questions from which worked examples are drawn."""


class QuestionsStage(Stage):
    """Read a benchmark's split into one table of questions."""

    kind: Literal["questions"] = "questions"
    name: Literal["questions"] = "questions"

    summary: ClassVar[str] = "read a benchmark's questions"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split")

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.QUESTIONS

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        benchmark = work.resolution.benchmark
        if benchmark is None:
            raise StageError("a questions cell has no benchmark")
        reader = SplitReader(
            benchmark,
            work.resolution.axes["split"],
            question=benchmark.question,
            generate=benchmark.generate,
            has=benchmark.has,
            hub=work.hub,
        )
        yield from reader.frames()
        work.result.notes["bad_rows"] = list(reader.bad_rows)
        work.result.notes["source_files"] = dict(reader.files)
        work.result.notes["revision"] = reader.revision
