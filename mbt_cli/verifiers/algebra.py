"""Whether two expressions in LaTeX are equal, asked of sympy in processes of their own.

Expressions come from models and files. A worker has limits of CPU time and memory that the system
enforces, so that no expression can stop or fill this process. CPU time is counted, not the time of
a clock: what counts as equal does not depend on how busy the machine is.

Workers work under fork and spawn, in threads, in an event loop and in daemon processes. Each
process has its own for each comparison; a new one starts only when all are busy for a while. They
end with the process.
"""

import atexit
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from queue import Empty, LifoQueue

from mbt_cli.errors import UsageError

_CPU_SECONDS = {"meaning": 0.8, "difference": 5.0}
"""Limit of one comparison, by its name in `algebra_worker`."""
_MEMORY_BYTES = 1 << 30
"""Limit of the address space of a worker."""
_CLOCK_SECONDS = 60.0
"""Limit of one comparison by the clock, for a worker that is stopped or swapped out."""
_START_SECONDS = 300.0
"""Limit of the start of a worker, which reads files."""
_MOST_WORKERS = 4
_PATIENCE_SECONDS = 0.3
"""How long a comparison waits for a free worker before another one starts."""
_TRIES = 2
_PAIRS_KEPT = 32_768
_PROGRAM = Path(__file__).with_name("algebra_worker.py")


def equal(first: str, second: str) -> bool:
    """Whether math-verify finds two expressions equal; the order of the two does not matter.

    Different if it takes more than 0.8 seconds of CPU time or 1 GiB. Each pair is compared once.
    Safe in every thread.

    Raises:
        UsageError: math-verify is not installed, or its process cannot start.
    """
    return _equal("meaning", *sorted((first, second)))


def equal_difference(first: str, second: str) -> bool:
    """Whether sympy's own reader knows both and their difference simplifies to 0, in either order.

    It reads a text as far as it can: `1 < x` and `1 < y` have no difference, and `2 apples` is a
    product. Different if it takes more than 5 seconds of CPU time or 1 GiB. Each pair is compared
    once. Safe in every thread.

    Raises:
        UsageError: A package is not installed, or its process cannot start.
    """
    return _equal("difference", *sorted((first, second)))


@lru_cache(maxsize=_PAIRS_KEPT)
def _equal(comparison: str, first: str, second: str) -> bool:
    require()
    return _POOLS[comparison].compare(first, second)


def require() -> None:
    """UsageError if math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise UsageError(
            "math-verify is needed to compare answers that are written in different ways",
            hint='run `pip install "mbt-cli[math]"`',
        )


class _Worker:
    """One process; used by one thread at a time."""

    def __init__(self, comparison: str) -> None:
        # -P: the folder of the program has modules that are named like those of the library
        command = [sys.executable, "-P", str(_PROGRAM), str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, comparison, str(_CPU_SECONDS[comparison]), str(_MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # the order of terms depends on it
            start_new_session=True,
        )
        self._is_ready = False

    def compare(self, first: str, second: str) -> bool | None:
        """Whether the two are equal; None if the process has ended.

        Raises:
            UsageError: The process cannot start.
        """
        if not self._is_ready and self._line(_START_SECONDS) != b"ready\n":
            raise UsageError(
                "the process that compares answers in LaTeX does not start",
                hint='its error is above; run `pip install --upgrade "mbt-cli[math]"`',
            )
        self._is_ready = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([first, second]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        reply = self._line(_CLOCK_SECONDS)
        return None if reply is None else reply == b"1\n"

    def _line(self, seconds: float) -> bytes | None:
        stdout = self._process.stdout
        assert stdout is not None
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        # each line is one write of a few bytes
        return (stdout.readline() or None) if poll.poll(seconds * 1000) else None

    def end(self) -> None:
        """Kill the process and its child."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def forget(self) -> None:
        """Leave the process to the one that started it, of which this one is a fork."""
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class _Pool:
    """The workers of this process for one comparison."""

    def __init__(self, comparison: str) -> None:
        self._comparison = comparison
        self._free: LifoQueue[_Worker] = LifoQueue()
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()

    def compare(self, first: str, second: str) -> bool:
        """Whether the two are equal; not if the process of two workers ends."""
        for _ in range(_TRIES):
            worker = self._take()
            found = None
            try:
                found = worker.compare(first, second)
            finally:
                if found is None:  # it ended, or this thread was interrupted
                    self._drop(worker)
                else:
                    self._free.put(worker)
            if found is not None:
                return found
        return False

    def _take(self) -> _Worker:
        while True:
            with suppress(Empty):
                return self._free.get(timeout=_PATIENCE_SECONDS if self._workers else 0)
            with self._lock:
                if len(self._workers) < min(_MOST_WORKERS, os.cpu_count() or 1):
                    worker = _Worker(self._comparison)
                    self._workers.add(worker)
                    return worker

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.end()

    def end(self) -> None:
        """End all workers."""
        for worker in tuple(self._workers):
            self._drop(worker)

    def forget(self) -> None:
        """Leave all workers to the process that this one is a fork of."""
        for worker in self._workers:
            worker.forget()


_POOLS = {comparison: _Pool(comparison) for comparison in _CPU_SECONDS}


def _after_fork() -> None:
    for comparison, pool in _POOLS.items():
        pool.forget()
        _POOLS[comparison] = _Pool(comparison)


def _end() -> None:
    for pool in _POOLS.values():
        pool.end()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_end)
