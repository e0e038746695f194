"""Train: SFT or GRPO in a process of its own; what comes out is a model."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.errors import StageError
from mbt_cli.stages.base import AxisValues, InputRule, Keep, Stage, StageInput
from mbt_cli.stages.work import Resolution, Work


class TrainStage(Stage):
    """Train a model on rollouts, traces or rewards."""

    kind: Literal["train"] = "train"
    preset: str | None = None
    """Name of a file in presets/train/: the method and its settings."""
    data: StageInput | None = None
    """Rollouts or traces to train on."""
    target: Literal["reply", "trace"] | None = None
    """`reply`: the raw rollout; `trace`: a think block with the trace, then the gold answer."""
    keep: Keep | None = None
    """Which rows are trained on."""
    max_samples: int | None = Field(default=None, ge=1)
    """Rollouts per question at most."""
    max_traces: int | None = Field(default=None, ge=1)
    """Traces per rollout at most."""
    questions: dict[str, AxisValues] | None = None
    """Axes of the questions that GRPO asks."""
    reward: str | None = None
    """Name of the reward that GRPO maximises."""
    start: StageInput | None = None
    """Train stage whose checkpoint is trained further; left out, the model itself."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Settings laid on the preset's, key by key."""

    summary: ClassVar[str] = "train a model on traces or rewards"
    axes: ClassVar[tuple[str, ...]] = ("model",)
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "data": InputRule(kinds=("rollout", "synthesize", "rewrite")),
        "questions": InputRule(kinds=("questions",)),
        "start": InputRule(kinds=("train",)),
    }
    models: ClassVar[tuple[str, ...]] = ("model",)

    def columns(self, resolution: Resolution) -> pl.Schema:
        raise StageError(f"`{self.name}`: this version of mbt cannot run train stages yet")

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        raise StageError(f"`{self.name}`: this version of mbt cannot run train stages yet")
