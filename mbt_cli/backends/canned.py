"""Replies written down beforehand: for tests, demos and trying a manifest without a model."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from typing import Literal

from pydantic import Field

from mbt_cli.core.chat import Json, Request, Responder
from mbt_cli.core.places import ServerPlace
from mbt_cli.interfaces import Backend


class CannedBackend(Backend):
    """Answers from a list, in this process; the same question and sample get the same reply."""

    kind: Literal["canned"] = "canned"
    """Names the backend in a manifest."""
    replies: list[str] = Field(min_length=1)
    """What it may say; question and sample choose."""
    by_question: dict[str, str] = Field(default_factory=dict)
    """Question id to the reply that it gets instead."""
    reasoning: str | None = None
    """Sent as the reply's reasoning."""
    finish_reason: str | None = "stop"
    """Sent with every reply."""

    def identity(self) -> Mapping[str, Json]:
        return self.model_dump(mode="json")

    def open(self, place: ServerPlace) -> AbstractContextManager[Responder]:
        return self._open()

    @contextmanager
    def _open(self) -> Iterator[Responder]:
        yield Responder(self._respond, version="canned")

    def _respond(self, request: Request) -> Mapping[str, Json]:
        return completion(request, self._reply(request), self.reasoning, self.finish_reason)

    def _reply(self, request: Request) -> str:
        if request.question_id in self.by_question:
            return self.by_question[request.question_id]
        chosen = sha256(f"{request.question_id}\n{request.sample}".encode()).digest()
        return self.replies[int.from_bytes(chosen[:8], "big") % len(self.replies)]


def completion(
    request: Request, text: str, reasoning: str | None, finish_reason: str | None
) -> Mapping[str, Json]:
    """A chat completion as a server would send it, with words counted as tokens."""
    asked = sum(len(message["content"].split()) for message in request.messages)
    thought = len(reasoning.split()) if reasoning else 0
    message = {"role": "assistant", "content": text, "reasoning": reasoning}
    usage = {
        "prompt_tokens": asked,
        "completion_tokens": len(text.split()) + thought,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}
