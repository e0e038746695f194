"""The process of a program under test: it confines itself, runs the program, and serves its tests.

Everything that the program could reach here is the program's own: its text, the arguments of the
calls so far, and what it made of them. The tests, the expected results and the decision are in
another process.

It runs inside the sandbox and imports the standard library alone.
"""

import atexit
import io
import linecache
import os
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mbt_cli.sandbox.border import Guard, Json, Side

CHANNEL = 3
"""The descriptor of the channel to the tests."""
_FILE = "<program>"
_MODULE = "program"
_LONGEST_TEXT = 300


class Candidate:
    """The program and what its tests may ask of it.

    Args:
        confine: Confines this process; called when the program is known, before it runs.
    """

    def __init__(self, confine: Callable[[], None]) -> None:
        self._confine = confine
        self._names: dict[str, Any] = {}

    def serve(self) -> None:
        """Run the program that the tests send, and do what they ask until they end."""
        side = Side(
            socket.socket(fileno=CHANNEL),
            _ProgramGuard(),
            operations={
                "global": self._global,
                "function": self._function,
                "names": self._described,
            },
        )
        side.serve(self._run)

    def _run(self, helpers: list[str], source: str, given: str | None) -> Json:
        """Run the program; what went wrong, as text.

        Args:
            helpers: Texts that run before it.
            source: The program.
            given: Its input, for a whole program that prints; None: its names are used.
        """
        _use_input(given)
        self._confine()
        is_main = given is not None
        module = types.ModuleType("__main__" if is_main else _MODULE)
        module.__dict__["__builtins__"] = __builtins__
        sys.modules[module.__name__] = module
        sys.argv = [_FILE]
        self._names = vars(module)
        lines = source.splitlines(keepends=True)
        linecache.cache[_FILE] = (len(source), None, lines, _FILE)
        for text in helpers:
            run_helper(text, self._names)
        if is_main:
            _run_and_exit(source, self._names)
        try:
            _execute(source, self._names)
        except BaseException as error:  # noqa: BLE001 - the program's own
            return described(error)
        finally:
            _flush()
        return None

    def _global(self, name: str) -> Any:
        return self._names[name]

    def _function(self, name: str) -> Any:
        """A function of the program, or a method of its class `Solution`."""
        if name in self._names:
            return self._names[name]
        return getattr(self._names["Solution"](), name)

    def _described(self, names: list[str]) -> list[list[str]]:
        """Of those names that the program defines: the name, and where it was imported from."""
        found = []
        for name in names:
            if name in self._names:
                value = self._names[name]
                is_module = isinstance(value, types.ModuleType)
                origin = value.__name__ if is_module else getattr(value, "__module__", None)
                found.append([name, "module" if is_module else "value", str(origin)])
        return found


def _execute(source: str, names: dict[str, Any]) -> None:
    exec(compile(source, _FILE, "exec", dont_inherit=True), names)


def run_helper(text: str, names: dict[str, Any]) -> None:
    """Run a text of a question, unless it is only the beginning of a program."""
    with suppress(SyntaxError):
        exec(compile(text, "<helper>", "exec", dont_inherit=True), names)


def _run_and_exit(source: str, names: dict[str, Any]) -> None:
    """Run a whole program as Python would, to its end."""
    status = 0
    try:
        _execute(source, names)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for the program's threads
    except SystemExit as error:
        if error.code is not None:
            status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - the program's own
        status = 1
        traceback.print_exc()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(status & 255)


def _use_input(given: str | None) -> None:
    """Let the standard input be a text, or nothing, and open the streams anew."""
    if given is None:
        source = os.open(os.devnull, os.O_RDONLY)
    else:
        source = os.memfd_create("input")
        with open(source, "wb", closefd=False) as file:
            file.write(given.encode("utf-8", "surrogateescape"))
        os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.close(source)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        descriptor: Any = io.FileIO(number, "w" if number else "r", closefd=False)
        descriptor.name = f"<{name}>"  # as in a plain interpreter
        stream: Any
        if number:
            raw = io.BufferedWriter(descriptor)
            is_by_line = given is None
            stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=is_by_line)
        else:
            stream = io.TextIOWrapper(io.BufferedReader(descriptor), "utf-8", "surrogateescape")
        stream.mode = "w" if number else "r"  # programs with their own input and output read it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()


class _ProgramGuard(Guard):
    """The side of the program: the tests may do everything."""

    def done(self) -> None:
        _flush()

    def place(self, error: BaseException) -> str:
        return line_of(error)


def described(error: BaseException) -> str:
    """An exception of the program for people: its type, text and line."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a program's own class
        text = ""
    name = type(error).__name__.strip(" :") or "an exception without a name"
    said = f"{name}: {text[:_LONGEST_TEXT]}".rstrip(": ")
    place = line_of(error)
    return f"{said} ({place})" if place else said


def line_of(error: BaseException) -> str:
    """The last line of the program in a traceback."""
    if isinstance(error, SyntaxError) and error.filename == _FILE:
        return f"line {error.lineno}: {(error.text or '').strip()[:_LONGEST_TEXT]}"
    last = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            last = trace
        trace = trace.tb_next
    if last is None:
        return ""
    text = linecache.getline(_FILE, last.tb_lineno).strip()
    return f"line {last.tb_lineno}: {text[:_LONGEST_TEXT]}"
