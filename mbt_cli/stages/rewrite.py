"""Rewrite: a teacher turns a student's own trace into a better one."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.model import Grows
from mbt_cli.errors import StageError
from mbt_cli.stages.base import InputRule, Keep, SamplingChoice, Stage, StageInput
from mbt_cli.stages.work import Resolution, Work


class RewriteStage(Stage):
    """Have a teacher rewrite every rollout's trace."""

    kind: Literal["rewrite"] = "rewrite"
    make: Literal["mbt_r", "plain"]
    """`mbt_r`: five phases; `plain`: coherent and correct without them (the control)."""
    rollouts: StageInput
    """Rollouts whose traces are rewritten."""
    solutions: StageInput
    """Worked solutions of the same questions."""
    teacher: str
    """Which model rewrites."""
    traces_per_rollout: Annotated[int, Grows] = Field(ge=1)
    """Rewrites of each rollout."""
    keep: Keep | None = None
    """Which rollouts are worth the price; left out, all that did not fail."""
    sampling: SamplingChoice | None = None
    """Another sampling than the teacher's own."""

    summary: ClassVar[str] = "have a teacher rewrite a student's traces"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split", "model")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "rollouts": InputRule(kinds=("rollout",), leading=True),
        "solutions": InputRule(kinds=("synthesize",)),
    }
    reads_questions: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("teacher",)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRACES

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        raise StageError(f"`{self.name}`: this version of mbt cannot run rewrite stages yet")
