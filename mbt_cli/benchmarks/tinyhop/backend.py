"""A teacher made by rule for tinyhop: it explains each question from the facts that made it.

It is no model, and is called `scripted` wherever its work appears. It makes the whole chain of
solutions, traces and rewrites run where no strong model is at hand.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Literal

from mbt_cli.benchmarks.tinyhop.questions import question_from_id
from mbt_cli.benchmarks.tinyhop.teacher import (
    Lesson,
    fresh_trace,
    lesson_of,
    plain_trace,
    rewritten_trace,
    solution,
)
from mbt_cli.core.chat import Json, Request, Responder, completion
from mbt_cli.core.draws import Draws
from mbt_cli.core.serving import ServerPlace
from mbt_cli.interfaces import Backend

_BEGINS = "--- the student's thinking begins ---"
_ENDS = "--- the student's thinking ends ---"


class ScriptedBackend(Backend):
    """Writes solutions, traces, rewrites and answers for tinyhop questions by rule."""

    kind: Literal["scripted"] = "scripted"
    """Names the backend in a manifest."""

    version: ClassVar[int] = 2

    def identity(self) -> Mapping[str, Json]:
        return {"kind": self.kind, "version": self.version}

    def open(self, place: ServerPlace) -> AbstractContextManager[Responder]:
        return self._open()

    @contextmanager
    def _open(self) -> Iterator[Responder]:
        yield Responder(_respond, version=f"scripted {self.version}", supports_schema=False)


def _respond(request: Request) -> Mapping[str, Json]:
    """A completion for one request; LookupError where there is nothing to say to it."""
    try:
        lesson = lesson_of(question_from_id(request.question_id))
    except ValueError as error:
        raise LookupError(f"the scripted teacher knows tinyhop questions only: {error}") from error
    purpose = request.purpose.rpartition(":")[2]
    draws = Draws("scripted", purpose, request.seed)
    if purpose == "rollout":
        answer = f"<answer>{lesson.question.answer}</answer>"
        return completion(request, answer, plain_trace(lesson, draws), "stop")
    return completion(request, _text(purpose, request, lesson, draws), None, "stop")


def _text(purpose: str, request: Request, lesson: Lesson, draws: Draws) -> str:
    match purpose:
        case "solution":
            return solution(lesson, draws)
        case "mbt_s":
            return fresh_trace(lesson, draws)
        case "mbt_r":
            return rewritten_trace(lesson, _student(request), draws)
        case "plain":
            return plain_trace(lesson, draws)
    raise LookupError(f"the scripted teacher does not do `{request.purpose}`")


def _student(request: Request) -> str:
    """The student's thinking: between the marks of the shipped prompt, else the whole request."""
    last = request.messages[-1]["content"]
    begins, ends = last.find(_BEGINS), last.rfind(_ENDS)
    return last[begins + len(_BEGINS) : ends] if 0 <= begins < ends else last
