"""The program of a worker of `algebra`: compares expressions with math-verify, within limits.

    python -P algebra_worker.py PARENT_PID CPU_SECONDS MEMORY_BYTES

It imports math-verify once and forks a child that compares. The system ends the child after the
CPU time of a comparison, even within a single operation on large integers; the next child starts in
milliseconds. It imports nothing of mbt, and ends with its parent.

Each line of the standard input is a JSON list of two expressions; each gets one line: `1` equal,
`0` different or unreadable, `-` limit reached. The first line is `ready`.
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
    parent, seconds, memory = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)
    equal = _comparison()
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the parser of LaTeX prints what it does not understand
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


def _comparison() -> Callable[[str, str], bool]:
    """The comparison of two expressions, with its packages imported."""
    from math_verify import parse, verify  # noqa: PLC0415 - the package is an extra

    logging.disable()  # it logs each text that it cannot parse, and that it keeps no time

    @lru_cache(maxsize=4096)
    def read(text: str) -> Any:
        return parse(f"${text}$", parsing_timeout=None)

    def equal(given: str, wanted: str) -> bool:
        return bool(verify(read(wanted), read(given), timeout_seconds=None))

    equal("1+x", "x+1")  # the parser of LaTeX is built at its first use
    return equal


if __name__ == "__main__":
    main()
