"""Replies read from a file, one for each question: demos and tests with known answers."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from mbt_cli.backends.canned import completion
from mbt_cli.backends.weights import file_sha256
from mbt_cli.core.chat import Json, Request, Responder
from mbt_cli.core.places import ServerPlace
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Backend


class _Line(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(extra="forbid")

    question_id: str
    sample: int | None = None
    reply: str
    reasoning: str | None = None
    finish_reason: str | None = "stop"


class RecordedBackend(Backend):
    """Answers from a file, in this process; a question that it does not hold gets a failure."""

    kind: Literal["recorded"] = "recorded"
    """Names the backend in a manifest."""
    file: str
    """JSON lines with question_id, reply, and where wanted sample, reasoning, finish_reason; a
    line without `sample` answers every sample of its question."""

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
            raise UsageError(f"there is no script `{self.file}` for the backend `scripted`")
        return path


@cache
def _lines(path: Path, sha256: str) -> Mapping[tuple[str, int | None], _Line]:
    """The file's lines by question and sample, read once for each content."""
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
