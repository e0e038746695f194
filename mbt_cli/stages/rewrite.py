"""Rewrite: a teacher turns a student's own trace into a better one."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field, model_validator

from mbt_cli.core import rows
from mbt_cli.core.frames import frame_of_rows
from mbt_cli.core.gates import Gates
from mbt_cli.core.model import Grows
from mbt_cli.core.traces import trace_of
from mbt_cli.stages.asking import AskPlan, Prompt, ask_model, failed_row
from mbt_cli.stages.base import InputRule, Keep, SamplingChoice, Stage, StageInput
from mbt_cli.stages.pairing import Pairs, pair_rollouts
from mbt_cli.stages.row_reader import RowReader
from mbt_cli.stages.synthesize import prompt_values, with_own_prompt
from mbt_cli.stages.teaching import MOST_TRACES, Intake
from mbt_cli.stages.work import Resolution, Work

_ROLLOUTS_AT_ONCE = 250
_FAILED_AT_ONCE = 5_000


class RewriteStage(Stage):
    """Have a teacher rewrite every rollout's trace."""

    kind: Literal["rewrite"] = "rewrite"
    make: Literal["mbt_r", "plain"]
    """`mbt_r`: five phases; `plain`: coherent and correct without them (the control)."""
    rollouts: StageInput | None = None
    """Rollouts whose traces are rewritten."""
    solutions: StageInput | None = None
    """Worked solutions of the same questions."""
    teacher: str | None = None
    """Which model rewrites."""
    traces_per_rollout: Annotated[int, Grows] = Field(ge=1, le=MOST_TRACES)
    """Rewrites of each rollout."""
    keep: Keep | None = None
    """Which rollouts are worth the price; left out, all that did not fail."""
    verdicts: StageInput | None = None
    """Verdicts of `answer_match` that say what is correct, in place of exact match."""
    prompt: str | None = None
    """Another template than the one named like `make`."""
    sampling: SamplingChoice | None = None
    """Another sampling than the teacher's own."""
    gates: Gates = Gates()
    """Checks that a text must pass to become data."""

    summary: ClassVar[str] = "have a teacher rewrite a student's traces"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split", "model")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "rollouts": InputRule(kinds=("rollout",), leading=True),
        "solutions": InputRule(kinds=("synthesize",)),
        "verdicts": InputRule(kinds=("judge",), same_rollouts=True),
    }
    reads_questions: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("teacher",)
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "documents", "answer", "solution", "trace"}
    )
    needed: ClassVar[tuple[str, ...]] = ("rollouts", "solutions", "teacher")

    @model_validator(mode="before")
    @classmethod
    def _own_prompt(cls, fields: Any) -> Any:
        return with_own_prompt(fields)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRACES

    def ask_plan(self, work: Work) -> AskPlan:
        """Every kept rollout that has a solution, times its traces."""
        return self._plan(work, pair_rollouts(work, self.keep), Intake(self.gates))

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        pairs, intake = pair_rollouts(work, self.keep), Intake(self.gates)
        for batch in pairs.unpaired.iter_slices(_FAILED_AT_ONCE):
            failed = [_unpaired_row(work, row) for row in batch.iter_rows(named=True)]
            yield frame_of_rows(failed, rows.TRACES)
        yield from ask_model(self._plan(work, pairs, intake), work, rows.TRACES)
        intake.tell(work, pairs.counts)

    def _plan(self, work: Work, pairs: Pairs, intake: Intake) -> AskPlan:
        return AskPlan(
            role="teacher",
            purpose=f"rewrite:{self.make}",
            prompts=lambda: self._prompts(work, pairs),
            total=pairs.paired.height * self.traces_per_rollout,
            row_of=intake.row,
        )

    def _prompts(self, work: Work, pairs: Pairs) -> Iterator[Prompt]:
        template = work.resolution.templates["prompt"]
        for row in _read_together(work, pairs):
            trace = trace_of(row["reasoning"], row["reply"])
            own = {"solution": row["solution"], "trace": trace}
            messages = template.fill({**prompt_values(row), **own})
            for trace_id in range(self.traces_per_rollout):
                seen = {
                    "answers": (row["answer"], *(row["answer_aliases"] or ())),
                    "made_from": {**_made_from(work, row), "trace_id": trace_id},
                }
                number = row["sample"] * MOST_TRACES + trace_id
                yield Prompt(row["question_id"], number, messages, row=seen)


def _read_together(work: Work, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """Each pair with its question, its rollout's text and its solution's, in bounded memory."""
    questions = RowReader(
        work.lazy("questions").select("question", "context", "answer", "answer_aliases")
    )
    rollouts = RowReader(work.lazy("rollouts").select("reasoning", "reply"))
    solutions = RowReader(work.lazy("solutions").select(pl.col("trace").alias("solution")))
    for batch in pairs.paired.iter_slices(_ROLLOUTS_AT_ONCE):
        together = pl.concat(
            [
                batch,
                questions.take(batch["question_row"]),
                rollouts.take(batch["rollout_row"]),
                solutions.take(batch["solution_row"]),
            ],
            how="horizontal",
        )
        yield from together.iter_rows(named=True)


def _made_from(work: Work, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sample": row["sample"],
        "rollout_address": work.input("rollouts").address,
        "rollout_sample": row["sample"],
        "solution_address": row["solution_address"],
        "solution_id": row["solution_id"],
    }


def _unpaired_row(work: Work, row: Mapping[str, Any]) -> dict[str, Any]:
    return failed_row(
        rows.TRACES,
        row["problem"],
        question_id=row["question_id"],
        sample=row["sample"],
        trace_id=0,
        rollout_address=work.input("rollouts").address,
        rollout_sample=row["sample"],
    )
