"""The program of a worker of `algebra`: compares expressions with sympy, within limits.

    python -P algebra_worker.py PARENT_PID COMPARISON CPU_SECONDS MEMORY_BYTES

It imports its libraries once and forks a child that compares. The system ends the child after the
CPU time of a comparison, even within a single operation on large integers; the next child starts in
milliseconds. It imports nothing of mbt, and ends with its parent.

Each line of the standard input is a JSON list of two texts; each gets one line: `1` equal, `0`
different or unreadable, `-` limit reached. The first line is `ready`. The comparison is one of

- `meaning`: by math-verify. A text that begins with `[` is the form of an `expressions.Expression`,
  or a relation of two; others are LaTeX.
- `difference`: whether sympy reads both as LaTeX and simplifies their difference to 0.
"""

import ctypes
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

_RENEW = 3  # exit status of a child that has grown
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_PARENT_POLL_SECONDS = 0.5


def main() -> None:
    """Fork a child, and another when it ends at its limit, until there is no input."""
    parent, make = int(sys.argv[1]), {"meaning": _meaning, "difference": _difference}[sys.argv[2]]
    seconds, memory = float(sys.argv[3]), int(sys.argv[4])
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the parsers of LaTeX print what they do not understand
    equal = make()
    os.dup2(nowhere, 2)

    def end_with_parent(*_: object) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)  # the child too, whatever it computes

    signal.signal(signal.SIGALRM, end_with_parent)
    signal.setitimer(signal.ITIMER_REAL, _PARENT_POLL_SECONDS, _PARENT_POLL_SECONDS)
    os.write(replies, b"ready\n")
    while True:
        child = os.fork()
        if not child:
            os._exit(_compare(equal, replies, seconds, memory))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            os.write(replies, b"-\n")
        elif os.waitstatus_to_exitcode(status) != _RENEW:
            return  # no more input, or it was killed: the parent sees the end


def _compare(equal: Callable[[str, str], bool], replies: int, seconds: float, memory: int) -> int:
    """Answer requests until the input ends; the exit status."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # macOS has no limit of memory
            resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
    while line := sys.stdin.buffer.readline():
        given, wanted = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            found = equal(given, wanted)
        except Exception:  # noqa: BLE001 - whatever the library raises about a text: not equal
            found = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(replies, b"1\n" if found else b"0\n")
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > memory // 2:
            return _RENEW
    return 0


def _meaning() -> Callable[[str, str], bool]:
    """The comparison by math-verify, with its packages imported."""
    # the packages are an extra
    import sympy  # noqa: PLC0415
    from latex2sympy2_extended import latex2sympy  # noqa: PLC0415
    from math_verify.grader import should_treat_as_complex, verify  # noqa: PLC0415

    logging.disable()  # math-verify says that it keeps no time
    constants = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}
    relations = {
        "=": sympy.Eq,
        "neq": sympy.Ne,
        "<": sympy.StrictLessThan,
        ">": sympy.StrictGreaterThan,
        "leq": sympy.LessThan,
        "geq": sympy.GreaterThan,
    }

    def built(tree: Any) -> Any:
        match tree:
            case ["num", above, below]:
                return sympy.Rational(int(above), int(below))
            case ["var", name]:
                return sympy.Symbol(name.lstrip("\\"), real=True)
            case [name]:
                return constants[name]
            case ["relation", sign, left, right]:
                return relations[sign](built(left), built(right), evaluate=False)
            case ["fn", name, inner]:
                functions = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
                return getattr(sympy, functions.get(name, name))(built(inner))
        values = [built(part) for part in tree[1:]]
        match tree[0]:
            case "add":
                return values[0] + values[1]
            case "neg":
                return -values[0]
            case "mul":
                return values[0] * values[1]
            case "div":
                return values[0] / values[1]
            case "pow":
                return values[0] ** values[1]
            case "root" if values[1].is_negative and values[0].is_odd:
                return -((-values[1]) ** (1 / values[0]))
            case "root":
                return values[1] ** (1 / values[0])
            case "abs":
                return abs(values[0])
            case "fact":
                return sympy.factorial(values[0])
        raise ValueError(tree)

    @lru_cache(maxsize=4096)
    def read(text: str) -> Any:
        if text.startswith("["):
            return built(json.loads(text))
        # without its normalization, which takes single letters for units
        is_real = not should_treat_as_complex(text)
        return latex2sympy(text, is_real=is_real, normalization_config=None)

    def equal(one: str, other: str) -> bool:
        left, right = read(one), read(other)
        if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
            above, _ = sympy.fraction(sympy.together(left - right))
            if sympy.expand(above) == 0:  # much faster than what follows
                return True
        return bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))

    equal(r"x+\sin(1)", r"\sin(1)+x")  # the parser of LaTeX is built at its first use
    return equal


def _difference() -> Callable[[str, str], bool]:
    """The comparison by sympy's own reader of LaTeX."""
    import sympy  # noqa: PLC0415
    from sympy.parsing.latex import _parse_latex_antlr as reader  # noqa: PLC0415
    from sympy.parsing.latex import parse_latex  # noqa: PLC0415

    # sympy asks for ANTLR 4.11, whose tables 4.10 to 4.13 read too
    reader.version = lambda _package: "4.11"

    def equal(one: str, other: str) -> bool:
        difference = parse_latex(one) - parse_latex(other)
        return bool(sympy.simplify(difference) == 0)

    equal("1", "x")  # fails if the tables cannot be read
    return equal


if __name__ == "__main__":
    main()
