"""Judge: a model gives a verdict on every rollout."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Reply
from mbt_cli.core.model import Grows
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
"""Between the seeds of two votes: more votes or more samples leave every earlier seed as it was."""


class JudgeStage(Stage):
    """Ask a judge model for a verdict on every rollout."""

    kind: Literal["judge"] = "judge"
    rollouts: StageInput
    """Rollout stages that are judged."""
    judge_model: str
    """Which model judges."""
    votes: Annotated[int, Grows] = Field(default=1, ge=1)
    """Verdicts per rollout."""
    constrained: bool = True
    """Hold the reply to the judge's JSON schema where the backend can."""
    sampling: SamplingChoice | None = None
    """Another sampling than the judge model's own."""

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
        """Every rollout whose verdict does not hold by definition, times the votes."""
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
        known = list(_known_rows(work, judge, columns, self.votes))
        yield frame_of_rows(known, columns)
        batch = self.request_batch(work)
        yield from ask_model(work, batch, columns, partial(_verdict, judge))

    def _todo(self, work: Work, judge: Judge) -> list[dict[str, Any]]:
        return [
            row
            for row in with_questions(work).iter_rows(named=True)
            if row["failure"] is None and judge.verdict_without_model(_seen_by_judge(row)) is None
        ]

    def _tasks(self, work: Work, judge: Judge, todo: list[dict[str, Any]]) -> Iterator[Task]:
        template = work.resolution.templates["judge"]
        for rollout in todo:
            row = _seen_by_judge(rollout)
            body = _response_format(judge, row) if self.constrained else {}
            messages = tuple(judge.prompt(row, template))
            for vote in range(self.votes):
                number = rollout["sample"] + vote * _VOTE_STRIDE
                seen = {"row": row, "sample": rollout["sample"], "vote": vote}
                steps = one_request(judge.kind, messages, body)
                yield Task(rollout["question_id"], number, steps, seen)


def _seen_by_judge(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "trace": trace_of(row["reasoning"], row["reply"])}


def _judge(resolution: Resolution) -> Judge:
    if resolution.judge is None:
        raise StageError("a judge cell has no judge")
    return resolution.judge


def _response_format(judge: Judge, row: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"name": judge.kind, "schema": dict(judge.schema_for(row)), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _known_rows(
    work: Work, judge: Judge, columns: pl.Schema, votes: int
) -> Iterator[dict[str, Any]]:
    """Verdicts that nobody has to be asked for, and rollouts that have nothing to judge."""
    for row in with_questions(work).iter_rows(named=True):
        keys = {"question_id": row["question_id"], "sample": row["sample"], "asked": False}
        if row["failure"] is not None:
            reason = f"rollout_failed: {row['failure']}"
            yield failed_row(columns, reason, vote=0, **keys)
        elif (verdict := judge.verdict_without_model(_seen_by_judge(row))) is not None:
            for vote in range(votes):
                yield {**dict.fromkeys(columns), **keys, "vote": vote, **verdict}


def _verdict(judge: Judge, task: Task, reply: Reply) -> dict[str, Any]:
    seen = task.row
    own: dict[str, Any] = dict.fromkeys(judge.columns)
    failure = reply.failure
    if failure is None:
        try:
            own = dict(judge.parse(reply.text or "", seen["row"]))
        except JudgeReplyError as error:
            # counted and shown: scoring it 0 would charge the judge's fault to the model
            failure = f"{rows.UNREADABLE}: {error}"
    keys = {"question_id": task.question_id, "sample": seen["sample"], "vote": seen["vote"]}
    return {**keys, "asked": True, **own, "failure": failure}
