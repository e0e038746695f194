"""The steps of rollouts and verdicts: every request of a program as a row, beside theirs."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from mbt_cli.core import rows
from mbt_cli.core.programs import Result
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.stages.ask import reply_columns
from mbt_cli.stages.base import Work
from mbt_cli.store.parquet import ParquetStream

_BATCH_CHARACTERS = 4 << 20


class StepsFile:
    """Writes `files/steps.parquet` of a cell while its results come, in bounded memory."""

    def __init__(self, work: Work) -> None:
        self._models = {role: model.name for role, model in work.resolution.roles.items()}
        models = work.resolution.models
        self._own = (models.get("model") or models["judge_model"]).name
        self._path = work.files / rows.STEPS_FILE
        self._rows: list[dict[str, Any]] = []
        self._characters = 0
        self._finished = False

    def __enter__(self) -> "StepsFile":
        self._stream = ParquetStream(self._path, rows.STEPS, {})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stream.abandon()
            return
        self._write()
        self._stream.finish()

    def add(self, result: Result) -> None:
        """Write the steps of a rollout.

        Raises:
            ArtifactError: The file cannot be written.
        """
        places = {step.path: number for number, step in enumerate(result.steps)}
        answering = result.answering
        for number, step in enumerate(result.steps):
            self._rows.append(
                {
                    "question_id": result.task.question_id,
                    "sample": result.task.sample,
                    "step": number,
                    "path": ".".join(map(str, step.path)),
                    "name": step.name,
                    "role": step.role,
                    "model": self._models.get(step.role, self._own),
                    "parents": [places[path] for path in step.parents],
                    "trainable": step.trainable,
                    "read": step.read,
                    "is_unread": step.is_unread,
                    "is_answer": step is answering,
                    **reply_columns(step.request, step.reply),
                }
            )
            self._characters += step.reply.characters + sum(
                len(turn["content"]) for turn in step.request.messages
            )
        if self._characters > _BATCH_CHARACTERS:
            self._write()

    def _write(self) -> None:
        self._stream.append(frame_of_rows(self._rows, rows.STEPS))
        self._rows.clear()
        self._characters = 0


def totals(result: Result) -> Mapping[str, Any]:
    """The columns of `rows.OF_PROGRAM`: what all steps of a rollout cost."""
    replies = [step.reply for step in result.steps]
    return {
        "steps": len(replies),
        "failed_steps": sum(reply.failure is not None for reply in replies),
        "unread_steps": sum(step.is_unread for step in result.steps),
        "total_prompt_tokens": _total([reply.prompt_tokens for reply in replies]),
        "total_completion_tokens": _total([reply.completion_tokens for reply in replies]),
    }


def _total(counts: list[int | None]) -> int | None:
    """The sum of what is counted; None if nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
