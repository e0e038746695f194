"""A person at the terminal."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar, Literal

import orjson
from pydantic import Field

from mbt_cli.core.chat import Json, Request, Responder, uncounted_completion
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import Stopped, UsageError
from mbt_cli.interfaces import Backend

_END = "."
_DRAFT = "unfinished-answer.json"
_CUT_BYTES = 4095
"""Bytes of a line from which a terminal without line editing drops the rest."""


class HumanBackend(Backend):
    """Shows each request on the terminal and takes the answer that a person types.

    An answer has any number of lines and ends with a line that has only a dot, or with Ctrl-D. It
    is journaled at once. Ctrl-C stops the run: finished answers are kept, and the lines of an
    unfinished one are there again when the same command resumes.
    """

    kind: Literal["human"] = "human"
    """Names the backend in a manifest."""
    name: str = Field(default="", max_length=64, pattern=r"^[\w.+-]*$")
    """Who answers, such as `annotator-2`: nobody else's answers count as theirs."""

    has_model: ClassVar[bool] = False

    def identity(self) -> Mapping[str, Json]:
        return {"human": self.name}

    def check(self, environment: Mapping[str, str]) -> None:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                f"the backend `{self.kind}` asks a person, and this is not a terminal",
                hint="run `mbt run` in a terminal, without a pipe and not as a job",
            )

    def open(self, place: ServerPlace) -> AbstractContextManager[Responder]:
        return self._open(place)

    @contextmanager
    def _open(self, place: ServerPlace) -> Iterator[Responder]:
        self.check(place.environment)
        draft = _Draft(place.log.with_name(_DRAFT))

        def respond(request: Request) -> Mapping[str, Json]:
            return uncounted_completion(_answer(request, draft))

        with _terminal_as_before():
            yield Responder(respond, version="a person", supports_schema=False, holds_terminal=True)


def _answer(request: Request, draft: "_Draft") -> str:
    """Show the request, and read lines until the answer ends."""
    sample = f", sample {request.sample}" if request.sample else ""
    _show(f"\n=== question {request.question_id}{sample} ===\n")
    for message in request.messages:
        _show(f"[{message['role']}]\n{message['content'].rstrip()}\n\n")
    _show("=== your answer; end it with a line that has only `.`, or with Ctrl-D ===\n")
    lines = draft.lines(request.key)
    if lines:
        _show("(resumed; you had typed this)\n" + "".join(f"{line}\n" for line in lines))
    while (typed := _line()) != _END:
        if typed is None:
            if not lines:
                raise Stopped(
                    "stopped by the end of the input; every answer is kept",
                    hint="run the same command again to resume; to skip a question, answer `.`",
                )
            break
        if len(typed.encode()) == _CUT_BYTES:
            _show("(the terminal may have cut this line: type shorter ones)\n")
        lines += typed.split("\n")  # a paste may have several
        draft.keep(request.key, lines)
    draft.forget()
    return "\n".join(lines).strip("\n")


def _line() -> str | None:
    """One line of the terminal, with line editing where Python has it; None at its end."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - `input` uses it once it is imported

    try:
        return input()
    except EOFError:
        return None


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


class _Draft:
    """The lines of an unfinished answer, on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self, key: str) -> list[str]:
        """What was typed for a request before a break."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = orjson.loads(self._path.read_bytes())
            if kept["key"] == key:
                return [str(line) for line in kept["lines"]]
        return []

    def keep(self, key: str, lines: list[str]) -> None:
        """Replace the file; what cannot be written is not kept, and the answer goes on."""
        partial = self._path.with_suffix(".partial")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(orjson.dumps({"key": key, "lines": lines}))
            partial.replace(self._path)

    def forget(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink()


@contextmanager
def _terminal_as_before() -> Iterator[None]:
    """Leave the terminal as it was, whatever ends a line that is being edited."""
    try:
        import termios
    except ImportError:  # not on Windows
        yield
        return
    end = sys.stdin.fileno()
    before = termios.tcgetattr(end) if os.isatty(end) else None
    try:
        yield
    finally:
        if before is not None:
            termios.tcsetattr(end, termios.TCSADRAIN, before)
