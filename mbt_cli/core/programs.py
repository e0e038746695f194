"""Programs: how a model works on one question, as a generator of requests.

A program yields the requests that it wants answered together and is sent their replies. A yielded
item may itself be a program, so that branches run side by side; `yield from` composes. A program
has no event loop, clock or global randomness in it: equal replies lead to equal next requests.
That is why a run resumes by running the program again over the replies in the journal. A request
that failed after all retries is answered too: its Reply has a `failure`, and often no text.

    def run(self, question, messages, draw):
        drafts = yield [Ask("draft", messages) for _ in range(4)]
        reports = yield [self._verify(draft) for draft in drafts]  # programs, side by side
        (reply,) = yield [Ask("final", self._final(drafts, reports))]
        return reply
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mbt_cli.core.chat import Json, Message, Reply, Request
from mbt_cli.core.random_draws import Draws


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a program, without the model's sampling and the seed.

    Args:
        name: What this step is called.
        messages: The conversation to send.
        body: Fields of the JSON body for this request alone, such as `response_format`.
    """

    name: str
    messages: tuple[Message, ...]
    body: Mapping[str, Json] = field(default_factory=dict)


Steps = Generator[Sequence["Ask | Steps"], list[Any], Any]
"""A running program: yields requests and programs, is sent a Reply for each request and the
returned value of each program, in the same order. The outermost program returns a Reply."""

Draw = Callable[..., Draws]
"""Gives a program its random draws: `draw("pairs", 2)` is the same stream in every run for the
same study seed, question, sample and name."""


def one_request(
    name: str, messages: tuple[Message, ...], body: Mapping[str, Json] | None = None
) -> Steps:
    """The program of one request; its reply is the answer."""
    (reply,) = yield [Ask(name, messages, body or {})]
    return reply


@dataclass(slots=True, eq=False)
class Task:
    """One program over one question, which becomes one row.

    Args:
        question_id: The question that it is about.
        sample: Number of the sample, trace or vote; enters every seed.
        steps: The program, not started.
        row: What the stage needs to make the row from the reply.
    """

    question_id: str
    sample: int
    steps: Steps
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Step:
    """One request that a program made, and its reply.

    Args:
        path: Its place in the program: number of the yield, number within it, and so on down
            the branches. The first request is (0, 0).
        name: `Ask.name`.
    """

    path: tuple[int, ...]
    name: str
    request: Request
    reply: Reply


@dataclass(slots=True, eq=False)
class Result:
    """A finished task.

    Args:
        reply: What the program returned.
        steps: Every request in the program's order, whatever the order of the replies.
    """

    task: Task
    reply: Reply
    steps: Sequence[Step]

    @property
    def request(self) -> Request:
        """The request that the returned reply answers; the last one if it answers none."""
        found = (step.request for step in self.steps if step.reply is self.reply)
        return next(found, self.steps[-1].request)
