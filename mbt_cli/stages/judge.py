"""Judge: a model gives a verdict on every rollout."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Reply
from mbt_cli.core.plugin import Grows
from mbt_cli.core.programs import Task, one_request
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.core.traces import trace_of
from mbt_cli.errors import JudgeReplyError, StageError
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.interfaces import Judge
from mbt_cli.stages.ask import ask_model, failed_row, request_batch
from mbt_cli.stages.base import InputRule, Resolution, SamplingChoice, Stage, StageInput, Work
from mbt_cli.stages.inputs import with_questions

_VOTE_STRIDE = 1 << 20
"""Distance between the seeds of two votes: more votes or samples leave earlier seeds unchanged."""


class JudgeStage(Stage):
    """Ask a judge model for a verdict on every rollout."""

    kind: Literal["judge"] = "judge"
    rollouts: StageInput
    """Rollout stages to judge."""
    judge_model: str
    """The model that judges."""
    votes: Annotated[int, Grows] = Field(default=1, ge=1, le=1_000, strict=True)
    """Number of verdicts per rollout."""
    constrained: bool = True
    """Constrain replies to the judge's JSON schema if the backend supports it."""
    sampling: SamplingChoice | None = None
    """Sampling to use instead of the judge model's own."""

    summary: ClassVar[str] = "ask a judge model for a verdict on every rollout"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split", "judge")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "rollouts": InputRule(kinds=("rollout",), leading=True)
    }
    reads_questions: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("judge_model",)

    def columns(self, resolution: Resolution) -> pl.Schema:
        judge = _judge(resolution)
        return pl.Schema({**rows.VERDICTS, **judge.columns, "asked": pl.Boolean()})

    def request_batch(self, work: Work) -> RequestBatch:
        """One request per vote for every rollout whose verdict needs a model."""
        judge = _judge(work.resolution)
        todo = self._todo(work, judge)
        return request_batch(
            work,
            role="judge_model",
            purpose=f"judge:{judge.kind}",
            tasks=lambda: self._tasks(work, judge, todo),
            total=len(todo) * self.votes,
        )

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        judge = _judge(work.resolution)
        columns = self.columns(work.resolution)
        without_model = list(_rows_without_model(work, judge, columns, self.votes))
        yield frame_of_rows(without_model, columns)
        batch = self.request_batch(work)
        yield from ask_model(work, batch, columns, partial(_verdict, judge))

    def _todo(self, work: Work, judge: Judge) -> list[dict[str, Any]]:
        return [
            row
            for row in with_questions(work).iter_rows(named=True)
            if row["failure"] is None and judge.verdict_without_model(seen_by_judge(row)) is None
        ]

    def _tasks(self, work: Work, judge: Judge, todo: list[dict[str, Any]]) -> Iterator[Task]:
        template = work.resolution.templates["judge"]
        for rollout in todo:
            row = seen_by_judge(rollout)
            body = _response_format(judge, row) if self.constrained else {}
            messages = tuple(judge.prompt(row, template))
            for vote in range(self.votes):
                number = rollout["sample"] + vote * _VOTE_STRIDE
                seen = {"row": row, "sample": rollout["sample"], "vote": vote}
                steps = one_request(judge.kind, messages, body)
                yield Task(rollout["question_id"], number, steps, seen)


def seen_by_judge(row: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout with its question, as judges read it."""
    return {**row, "trace": trace_of(row["reasoning"], row["reply"])}


def _judge(resolution: Resolution) -> Judge:
    if resolution.judge is None:
        raise StageError("a judge cell has no judge")
    return resolution.judge


def _response_format(judge: Judge, row: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"name": judge.kind, "schema": dict(judge.schema_for(row)), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _rows_without_model(
    work: Work, judge: Judge, columns: pl.Schema, votes: int
) -> Iterator[dict[str, Any]]:
    """Verdicts that hold by definition, and failures of rollouts that have no reply to judge."""
    for row in with_questions(work).iter_rows(named=True):
        keys = {"question_id": row["question_id"], "sample": row["sample"], "asked": False}
        if row["failure"] is not None:
            reason = f"rollout_failed: {row['failure']}"
            yield failed_row(columns, reason, vote=0, **keys)
        elif (verdict := judge.verdict_without_model(seen_by_judge(row))) is not None:
            for vote in range(votes):
                yield {**dict.fromkeys(columns), **keys, "vote": vote, **verdict}


def _verdict(judge: Judge, task: Task, reply: Reply) -> dict[str, Any]:
    seen = task.row
    own: dict[str, Any] = dict.fromkeys(judge.columns)
    failure = reply.failure
    if failure is None:
        try:
            own = dict(judge.parse(reply.text or "", seen["row"]))
        except (JudgeReplyError, RecursionError) as error:  # the latter from deeply nested JSON
            # not a 0, which would blame the judged model for a fault of the judge
            failure = f"{rows.UNREADABLE}: {error}"
    keys = {"question_id": task.question_id, "sample": seen["sample"], "vote": seen["vote"]}
    return {**keys, "asked": True, **own, "failure": failure}
