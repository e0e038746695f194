"""Prepared replies, for tests, demos and trying a manifest without a model."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mbt_cli.backends.weights import file_sha256
from mbt_cli.core.chat import Json, Request, Responder, completion
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Backend


class CannedBackend(Backend):
    """Replies from a list; the same question and sample always get the same reply."""

    kind: Literal["canned"] = "canned"
    """Names the backend in a manifest."""
    replies: list[str] = Field(min_length=1)
    """The replies; question and sample determine which one is sent."""
    by_question: dict[str, str] = Field(default_factory=dict)
    """Question id to the reply that it gets instead."""
    reasoning: str | None = None
    """Reasoning of every reply."""
    finish_reason: str | None = "stop"
    """Finish reason of every reply."""

    toy_label: ClassVar[str] = "canned"
    has_model: ClassVar[bool] = False

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


class _Line(BaseModel):
    """One line of a recording."""

    model_config = ConfigDict(extra="forbid")

    question_id: str
    sample: int | None = None
    reply: str
    reasoning: str | None = None
    finish_reason: str | None = "stop"


class RecordedBackend(Backend):
    """Replies from a file; a question that is not in it fails."""

    kind: Literal["recorded"] = "recorded"
    """Names the backend in a manifest."""
    file: str
    """JSON lines with question_id, reply, and optionally sample, reasoning and finish_reason. A
    line without `sample` answers every sample of its question."""

    toy_label: ClassVar[str] = "recorded"
    has_model: ClassVar[bool] = False

    def identity(self) -> Mapping[str, Json]:
        return {"script": file_sha256(self._path())}

    def open(self, place: ServerPlace) -> AbstractContextManager[Responder]:
        return self._open()

    @contextmanager
    def _open(self) -> Iterator[Responder]:
        lines = _lines(self._path(), file_sha256(self._path()))

        def respond(request: Request) -> Mapping[str, Json]:
            line = lines.get((request.question_id, request.sample))
            line = line or lines.get((request.question_id, None))
            if line is None:
                raise LookupError(f"`{self.file}` has no reply to `{request.question_id}`")
            return completion(request, line.reply, line.reasoning, line.finish_reason)

        yield Responder(respond, version="recorded")

    def _path(self) -> Path:
        path = Path(self.file).expanduser()
        if not path.is_file():
            raise UsageError(
                f"no file `{self.file}`", hint="correct `backend.file`: JSON lines of replies"
            )
        return path


@cache
def _lines(path: Path, sha256: str) -> Mapping[tuple[str, int | None], _Line]:
    """The lines by question and sample, read once for each content of the file."""
    found = {}
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = _Line.model_validate(orjson.loads(text))
        except (orjson.JSONDecodeError, ValidationError) as error:
            words = str(error).replace("\n", " ")
            raise UsageError(f"`{path}`, line {number}: {words}") from error
        found[line.question_id, line.sample] = line
    return found
