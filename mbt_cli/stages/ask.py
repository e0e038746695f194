"""How every stage that asks a model does it: prompts in, durable rows out, in bounded memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import polars as pl

from mbt_cli.core.chat import Message, Reply, Request
from mbt_cli.core.keys import request_key, request_seed
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.inference.ask import Asking, ask
from mbt_cli.stages.base import Model, Work

BATCH_ROWS = 250
"""Rows that are turned into one frame at a time."""

RetryOn = Literal["length", "empty", "content_filter", "malformed_reply"]
"""Outcomes that may be asked for again with a new seed."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to send, before the model's sampling and seed are added.

    Args:
        body: Fields for this request alone, such as `response_format`.
        row: What the stage needs again when the reply is there.
    """

    question_id: str
    sample: int
    messages: tuple[Message, ...]
    body: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AskPlan:
    """What one cell asks, of whom, and what becomes of each reply.

    Args:
        role: Which of the cell's models is asked.
        purpose: Enters every seed, so that two stages never draw alike.
        prompts: All prompts of the cell, in the same order at every call.
        total: How many those are.
        row_of: A request and its reply to the stage's own columns.
        retry_on: Outcomes that are asked again with a new seed.
        retry_max_tokens: Token limit of such a second try.
    """

    role: str
    purpose: str
    prompts: Callable[[], Iterable[Prompt]]
    total: int
    row_of: Callable[[Request, Reply], Mapping[str, Any]]
    retry_on: Sequence[str] = ()
    retry_max_tokens: int | None = None

    def asking(self, work: Work) -> Asking:
        """The same in the words of the inference layer."""
        model = work.resolution.models[self.role]
        return Asking(
            requests=lambda: requests_for(
                model, self.purpose, self.prompts(), study_seed=work.resolution.seed
            ),
            total=self.total,
            open=lambda place: work.open(model.backend, place),
            place=work.place(model.run),
            max_tokens=model.sampling.max_tokens,
            run=model.run,
            retry_on=tuple(self.retry_on),
            retry_max_tokens=self.retry_max_tokens,
            retry_failed=work.retry_failed,
            sends_seed=model.sampling.seedable,
            model_id=model.id,
        )


@runtime_checkable
class AsksModel(Protocol):
    """A stage that asks a model, so that a dry run can tell what it would ask."""

    def ask_plan(self, work: Work) -> AskPlan:
        """What the cell asks."""


def requests_for(
    model: Model, purpose: str, prompts: Iterable[Prompt], *, study_seed: int
) -> Iterator[Request]:
    """Prompts as requests: seeded, keyed, with the model's sampling."""
    identity = {**model.backend.identity(), "id": model.id}
    sampling = model.sampling_body()
    body = {**model.sampling.body(), **model.request}
    for prompt in prompts:
        seed = request_seed(study_seed, purpose, prompt.question_id, prompt.sample)
        yield Request(
            key=request_key(identity, prompt.messages, {**sampling, **prompt.body}, seed),
            question_id=prompt.question_id,
            sample=prompt.sample,
            messages=prompt.messages,
            seed=seed,
            body={**body, **prompt.body},
            row=prompt.row,
            purpose=purpose,
        )


def ask_model(plan: AskPlan, work: Work, columns: pl.Schema) -> Iterator[pl.DataFrame]:
    """Ask what is not known yet; rows are made in the order of the prompts, as early as can be.

    They are written while others are asked for; the last of them are given.
    """
    asking = plan.asking(work)
    model = work.resolution.models[plan.role]
    work.outcome.model = {"name": model.name, "role": plan.role, **model.spec()}
    work.progress.start(work.resolution.address, plan.total)
    rows: list[dict[str, Any]] = []

    def take(request: Request, reply: Reply) -> None:
        rows.append({**reply_columns(request, reply), **plan.row_of(request, reply)})
        if len(rows) == BATCH_ROWS:
            work.write(frame_of_rows(rows, columns))
            rows.clear()

    work.outcome.asked = ask(asking, work.journal, work.progress, take=take)
    yield frame_of_rows(rows, columns)


def reply_columns(request: Request, reply: Reply) -> dict[str, Any]:
    """The columns of `rows.REPLY`."""
    return {
        "messages": list(request.messages),
        "reply": reply.text,
        "reasoning": reply.reasoning,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "reasoning_tokens": reply.reasoning_tokens,
        "seed": reply.seed,
        "attempts": reply.attempts,
        "seconds": reply.seconds,
        "request_key": request.key,
        "failure": reply.failure,
    }


def failed_row(columns: pl.Schema, reason: str, **values: Any) -> dict[str, Any]:
    """A row that never became a request, with its reason; every other column is null."""
    return {**dict.fromkeys(columns), **values, "failure": reason}
