"""The process of the tests: it has programs started, lets them cross the border, and decides.

A program never shares a process with its tests, so that it cannot reach expected results, patch
what compares them, or end the tests early. Each test is reported as it ends; what has not been
reported has not passed.

It runs inside the sandbox and imports the standard library alone.
"""

import ast
import builtins
import json
import math
import os
import select
import socket
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from mbt_cli.sandbox.border import BorderError, GuardOfTests, Json, Remote, Side
from mbt_cli.sandbox.candidate import run_helper

_MODULE = "tests"
_TAIL_BYTES = 4096
_MOST_OUTPUT = 16 << 20
"""Bytes of the output of one case."""
_LONGEST_TEXT = 300
_IMPORTED = frozenset(
    ("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools",
     "heapq", "itertools", "math", "operator", "random", "re", "statistics", "string", "typing")
)  # fmt: skip
"""Modules whose contents the tests take from Python where the program imported them by name."""


class Unjudged(Exception):
    """No verdict can be reached."""


class Run:
    """One program that runs in a process of its own.

    Args:
        server: The channel to the fork server.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        ours, theirs = socket.socketpair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        ends = [theirs.fileno(), out_end, err_end]
        socket.send_fds(server, [b"start"], ends)
        theirs.close()
        os.close(out_end)
        os.close(err_end)
        self.channel = ours
        self._pipes = {out: bytearray(), err: bytearray()}
        self._open = {out, err}
        self._out, self._err = out, err
        self.most_output = _TAIL_BYTES
        self.has_too_much = False
        self._poll = select.poll()
        for pipe in (out, err):
            self._poll.register(pipe, select.POLLIN)
        self._poll.register(ours, select.POLLIN)
        self._status: dict[str, Any] | None = None

    def wait(self) -> None:
        """Read output until the program has sent something, or has ended."""
        while True:
            events = dict(self._poll.poll())
            for pipe in self._open & events.keys():
                self._read(pipe)
            if self.channel.fileno() in events:
                return

    def finish(self) -> None:
        """Read output until the program has ended, or has written too much."""
        while self._open and not self.has_too_much:
            events = dict(self._poll.poll())
            for pipe in self._open & events.keys():
                self._read(pipe)
            if self.channel.fileno() in events:  # its end; or bytes that nobody asked for
                self._poll.unregister(self.channel)

    def _read(self, pipe: int) -> None:
        data = os.read(pipe, 1 << 16)
        if not data:
            self._poll.unregister(pipe)
            self._open.remove(pipe)
            return
        held = self._pipes[pipe]
        held += data
        if len(held) > 2 * self.most_output:
            self.has_too_much = True
            del held[: -self.most_output]

    def end(self, *, waits: bool = False) -> dict[str, Any]:
        """End the program, or wait for its end; its signal, exit status and limit."""
        if self._status is None:
            self.channel.close()
            if not waits:
                self._server.send(b"stop")
            found = self._server.recv(4096)
            if not found:
                raise Unjudged("the fork server has ended")
            self._status = json.loads(found)
            for pipe in tuple(self._open):  # what it wrote at the end
                os.set_blocking(pipe, False)
                try:
                    while pipe in self._open:
                        self._read(pipe)
                except BlockingIOError:
                    pass
            for pipe in (self._out, self._err):
                os.close(pipe)
            self._open.clear()
        if self._status["outside"]:
            raise Unjudged("the program was killed from outside, perhaps for want of memory")
        return self._status

    @property
    def output(self) -> str:
        """What the program wrote to its standard output."""
        return self._pipes[self._out].decode("utf-8", "replace")

    @property
    def tail(self) -> str:
        """The last of what it wrote, errors behind output."""
        both = bytes(self._pipes[self._out]) + bytes(self._pipes[self._err])
        return both[-_TAIL_BYTES:].decode("utf-8", "replace")

    def reason(self) -> str:
        """Why a program that should still run has ended."""
        status = self.end(waits=True)
        if status["limit"] == "processor":
            return "reached the limit of processor time"
        if status["limit"]:
            return "waited too long"
        if status["signal"]:
            return f"was ended by signal {status['signal']}"
        return f"ended with exit status {status['status']}"


class Examiner:
    """Judges one program by its tests.

    Args:
        server: The channel to the fork server.
        report: Where outcomes go, one line of JSON each.
    """

    def __init__(self, server: socket.socket, report: socket.socket) -> None:
        self._server = server
        self._report = report
        self._tail = ""

    def examine(self, task: Mapping[str, Any]) -> None:
        """Run the tests of a task, and report."""
        try:
            if task["cases"] is None:
                self._assertions(task)
            else:
                self._cases(task)
        except Unjudged as error:
            self._say({"unjudged": str(error)})
        else:
            self._say({"output": self._tail})

    def _say(self, line: Json) -> None:
        self._report.sendall(json.dumps(line).encode() + b"\n")

    def _part(self, name: str, wrong: str | None) -> None:
        """Report a test: None if it passed, else why not, which may be an empty text."""
        detail = "" if wrong is None else wrong or "failed, and does not say why"
        self._say({"part": [name, wrong is None, detail]})

    # Assertions

    def _assertions(self, task: Mapping[str, Any]) -> None:
        run = Run(self._server)
        side = _Watched(run)
        try:
            self._assert_all(task, run, side)
        finally:
            run.end()
            self._tail = run.tail

    def _assert_all(self, task: Mapping[str, Any], run: Run, side: "_Watched") -> None:
        tests = [tuple(test) for test in task["tests"]]
        module = types.ModuleType(_MODULE)
        sys.modules[_MODULE] = module
        names = vars(module)
        wrong = _tried(lambda: side.tell(task["helpers"], task["source"], None))
        if isinstance(wrong, BorderError):
            wrong = f"the program {run.reason()}"
        if wrong is None:
            for text in task["helpers"]:
                run_helper(text, names)
            texts = [*task["setup"], *(code for _, code in tests)]
            wrong = self._let_in(side, names, texts, task["entries"])
        if wrong is None:
            for text in task["setup"]:
                if wrong is None:
                    wrong = self._outcome(text, names, run, side)
        for name, code in tests:
            detail = self._outcome(code, names, run, side) if wrong is None else wrong
            self._part(name, detail)
            if side.is_over:
                wrong = wrong or "not run: the program has ended"

    def _let_in(
        self, side: "_Watched", names: dict[str, Any], texts: Sequence[str], entries: Sequence[str]
    ) -> str | None:
        """Let the tests see the program's names that they use; what is missing, as text."""
        try:
            used = _names_read(texts)
        except SyntaxError as error:
            raise Unjudged(f"a test is not Python: {error}") from None
        wanted = [name for name in sorted(used) if name not in names]
        found = _tried(lambda: side.ask("names", sorted({*wanted, *entries})))
        if isinstance(found, BorderError) or not _is_described(found):
            return "the program has ended"
        own = [one for one in found if one[0] in entries or not hasattr(builtins, one[0])]
        # only tests that use nothing else of a program can mean its function `sum` by `sum`
        found = own or found
        for name, kind, origin in found:
            names[name] = self._value(side, name, kind, origin, is_entry=name in entries)
        missing = [name for name in entries if name not in {one[0] for one in found}]
        return f"the program does not define `{missing[0]}`" if missing else None

    def _value(self, side: "_Watched", name: str, kind: str, origin: str, *, is_entry: bool) -> Any:
        """A name of the program: from Python if the program only imported it."""
        if kind == "module" and origin in sys.stdlib_module_names and origin == name:
            return import_module(origin)
        if kind == "value" and origin in _IMPORTED and not is_entry:
            module = import_module(origin)
            if hasattr(module, name):
                return getattr(module, name)
        try:
            return side.ask("global", name)
        except Exception:  # noqa: BLE001 - a value that cannot cross: the test that uses it fails
            return None

    def _outcome(self, code: str, names: dict[str, Any], run: Run, side: "_Watched") -> str | None:
        """Run one test; why it failed, or None."""
        side.forget()
        try:
            exec(compile(code, "<tests>", "exec"), names)
        except BorderError:
            return f"the program {run.reason()}" if side.is_over else "no result"
        except BaseException as error:  # noqa: BLE001 - a failed test
            return _failure(error, code, side)
        # a test that catches everything also catches the end of its program
        return f"the program {run.reason()}" if side.is_over else None

    # Cases

    def _cases(self, task: Mapping[str, Any]) -> None:
        is_stopped = False
        for number, (given, wanted) in enumerate(task["cases"], start=1):
            if is_stopped:
                break
            run = Run(self._server)
            try:
                detail = (
                    self._printed(task, run, given, wanted)
                    if task["function"] is None
                    else self._returned(task, run, given, wanted)
                )
            finally:
                limit = run.end()["limit"]
                self._tail = run.tail
            self._part(f"case {number}", detail)
            # a program that is too slow once would take all the time of all cases
            is_stopped = detail is not None and (task["stops"] or bool(limit))

    def _printed(self, task: Mapping[str, Any], run: Run, given: str, wanted: str) -> str | None:
        run.most_output = _MOST_OUTPUT
        side = Side(run.channel, GuardOfTests(_MODULE))
        try:
            side.post(task["helpers"], task["source"], given)
        except BorderError:
            return f"the program {run.reason()}"
        run.finish()
        if run.has_too_much:
            return "printed too much"
        status = run.end(waits=True)
        if status["limit"] or status["signal"] or status["status"]:
            return f"the program {run.reason()}"
        return different_output(run.output, wanted) or None

    def _returned(self, task: Mapping[str, Any], run: Run, given: Any, wanted: Any) -> str | None:
        side = _Watched(run)
        wrong = _tried(lambda: side.tell(task["helpers"], task["source"], None))
        if isinstance(wrong, str):
            return wrong
        if wrong is not None:
            return f"the program {run.reason()}"
        try:
            found = side.ask("call", side.ask("function", task["function"]), *_arguments(given))
        except BorderError:
            return f"the program {run.reason()}"
        except BaseException as error:  # noqa: BLE001 - raised by the program
            return _raised(error)
        try:
            if same_result(found, wanted):
                return None
        except RecursionError:
            return "returned data that are too deep"
        return f"returned {_short(found)} instead of {_short(wanted)}"


class _Watched(Side):
    """The side of the tests, which remembers the last result of a call."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.channel, GuardOfTests(_MODULE), wait=run.wait)
        self._last: list[Any] = []

    def ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        try:
            value = super().ask(operation, *arguments, **named)
        except StopIteration:
            if operation != "call":
                raise
            # it would end a loop of the tests early
            raise RuntimeError("the program raised StopIteration") from None
        if operation == "call":
            self._last = [value]
        return value

    def forget(self) -> None:
        """Forget the last result."""
        self._last = []

    @property
    def last(self) -> str:
        """The last result as text; empty without one."""
        return f"the last call returned {_short(self._last[0])}" if self._last else ""


def _tried(action: Any) -> Any:
    try:
        return action()
    except BorderError as error:
        return error


def _is_described(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(one, list) and len(one) == 3 and all(isinstance(text, str) for text in one)
        for one in found
    )


def _names_read(texts: Sequence[str]) -> set[str]:
    return {
        node.id
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _failure(error: BaseException, code: str, side: _Watched) -> str:
    """Why a test failed, for people."""
    if not isinstance(error, AssertionError) or hasattr(error, "border_text"):
        return _raised(error)
    line = next(
        (
            code.splitlines()[number - 1].strip()
            for number in reversed([n for file, n in _lines(error) if file == "<tests>"])
            if number <= len(code.splitlines())
        ),
        "",
    )
    said = str(error)[:_LONGEST_TEXT]
    return "; ".join(text[:_LONGEST_TEXT] for text in (line, said, side.last) if text)


def _lines(error: BaseException) -> Iterator[tuple[str, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _raised(error: BaseException) -> str:
    text = getattr(error, "border_text", None)
    name = type(error).__name__.strip(" :") or "an exception without a name"
    said = f"{name}: {str(error) if text is None else text}"[:_LONGEST_TEXT]
    place = getattr(error, "border_place", "")
    return f"{said.rstrip(': ')} ({place[:_LONGEST_TEXT]})" if place else said.rstrip(": ")


def _short(value: Any) -> str:
    if isinstance(value, Remote):
        return "an object of the program"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - such as an integer of too many digits
        return f"a {type(value).__name__} ({type(error).__name__})"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


# What is the same


def same_result(found: Any, wanted: Any) -> bool:
    """Whether a function's result is the one of a case.

    Tuples count as lists. As in APPS, the wanted result may stand in a list of one, and keys of
    objects, which JSON has as texts only, may be whole numbers.
    """
    plain = _as_json(found)
    options = [wanted]
    if isinstance(wanted, list) and len(wanted) == 1:
        options.append(wanted[0])
    return any(plain == option or plain == _with_numbers(option) for option in options)


def _arguments(given: Any) -> Any:
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], dict):
        return _with_numbers(given)
    return given


def _as_json(value: Any) -> Any:
    if isinstance(value, Remote):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    return value


def _with_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_numbers(one) for one in value]
    if isinstance(value, dict):
        return {
            int(key) if key.lstrip("-").isdecimal() else key: _with_numbers(one)
            for key, one in value.items()
        }
    return value


_RELATIVE, _ABSOLUTE = 1e-5, 1e-8


def different_output(given: str, wanted: str) -> str:
    """Where an output differs from the one that a case wants; empty if it does not.

    Lines are compared word by word, without empty lines. Two words are the same if they are equal,
    or if both are numbers of which one has a decimal point, and they are close: by 1e-5 of their
    size.
    """
    lines, others = (
        [t.split() for t in text.splitlines() if t.split()] for text in (given, wanted)
    )
    for number, (line, other) in enumerate(zip(lines, others, strict=False), start=1):
        if len(line) != len(other) or not all(map(_same_word, line, other)):
            return f"line {number} is {_short(' '.join(line))} instead of {_short(' '.join(other))}"
    if len(lines) != len(others):
        return f"printed {len(lines)} lines instead of {len(others)}"
    return ""


def _same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    if "." not in one + other and "e" not in (one + other).lower():
        return False
    try:
        first, second = float(one), float(other)
    except ValueError:
        return False
    return math.isclose(first, second, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
