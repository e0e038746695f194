"""Train: SFT or GRPO in a process of its own; what comes out is a model."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.model import RunOnly
from mbt_cli.stages.base import AxisValues, InputReference, InputRule, Keep, Stage, StageInput
from mbt_cli.stages.external import take_over
from mbt_cli.stages.training import train
from mbt_cli.stages.training_data import Choice, asked_questions, chosen_examples
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
    prompt: str = "answer"
    """Template of the questions that the model learns to answer."""
    keep: Keep | None = None
    """Which rows are trained on."""
    max_samples: int | None = Field(default=None, ge=1)
    """Rollouts per question at most."""
    max_traces: int | None = Field(default=None, ge=1)
    """Traces per rollout at most."""
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Stage of `data` to its share; the largest mix that has these shares is drawn by the seed.
    Left out, all rows of all stages."""
    questions: dict[str, AxisValues] | None = None
    """Axes of the questions that GRPO asks."""
    reward: str | dict[str, float] | None = None
    """Name of the reward that GRPO maximises, or several with their weights."""
    start: StageInput | None = None
    """Train stage whose checkpoint is trained further; left out, the model itself."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Settings laid on the preset's, key by key: `batch_size`, `tuning`, `max_length`, ..."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """TRL's settings laid on the preset's, key by key."""
    lora: dict[str, Any] = Field(default_factory=dict)
    """PEFT's settings laid on the preset's, key by key."""
    launch: Annotated[dict[str, Any], RunOnly] = Field(default_factory=dict)
    """Which Python and accelerate preset run it."""
    tracking: Annotated[dict[str, Any], RunOnly] = Field(default_factory=dict)
    """Weights & Biases, TensorBoard."""

    summary: ClassVar[str] = "train a model on traces or rewards"
    axes: ClassVar[tuple[str, ...]] = ("model",)
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "data": InputRule(kinds=("rollout", "synthesize", "rewrite"), with_questions=True),
        "questions": InputRule(kinds=("questions",)),
        "start": InputRule(kinds=("train",)),
    }
    models: ClassVar[tuple[str, ...]] = ("model",)
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents"})
    resolved: ClassVar[tuple[str, ...]] = ("preset", "recipe", "trainer", "lora", "reward")

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRAINING_LOG

    def problems(self, read: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        kinds = set(read.get("data", ()))
        if self.data is not None and self.target is None:
            yield "target", "is required with `data`: `reply` or `trace`"
        if self.target == "trace" and "rollout" in kinds:
            yield "target", "`trace` needs traces; `data` names rollouts, whose target is `reply`"
        if self.target == "reply" and kinds & {"synthesize", "rewrite"}:
            yield "target", "`reply` needs rollouts; `data` names traces, whose target is `trace`"
        if self.keep in ("correct", "wrong", "answered") and kinds & {"synthesize", "rewrite"}:
            yield "keep", f"`{self.keep}` speaks of rollouts; gates of their own check traces"
        named = self._data_stages()
        for stage in sorted(set(self.weights) - set(named) if self.data is not None else ()):
            yield f"weights.{stage}", "is no stage of `data`"
        if self.weights and set(named) - set(self.weights):
            yield "weights", f"says nothing of `{min(set(named) - set(self.weights))}`"

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        if work.resolution.source is not None:
            yield take_over(work)
            return
        if self.data is None:
            examples = asked_questions(work)
        else:
            examples = chosen_examples(
                work,
                Choice(
                    target=self.target or "reply",
                    keep=self.keep,
                    max_samples=self.max_samples,
                    max_traces=self.max_traces,
                    weights=self.weights,
                ),
            )
        yield train(work, examples)

    def _data_stages(self) -> tuple[str, ...]:
        written = self.data.stage if isinstance(self.data, InputReference) else self.data or ()
        return (written,) if isinstance(written, str) else tuple(written)
