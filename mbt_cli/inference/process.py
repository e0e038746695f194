"""A server process of our own: started below a watchdog, logged without secrets, ended whole."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from mbt_cli.core.secrets import Secrets
from mbt_cli.inference import watchdog

GRACE_SECONDS = 10.0
"""Time a server has to end by itself after SIGTERM."""
_TAIL_LINES = 2_000


class ServerProcess:
    """A command that runs until `stop`, or until this process is gone, however it goes.

    Args:
        command: Program and arguments; nothing secret, since others can read them.
        environment: The whole environment of the process.
        log: File that gets everything it prints, with every secret of the environment masked.
        grace_seconds: Time it has to end by itself after SIGTERM.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self.command = tuple(command)
        self._secrets = Secrets(environment)
        self._grace_seconds = grace_seconds
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        log.parent.mkdir(parents=True, exist_ok=True)
        reading, self._lifeline = os.pipe()
        self._news, writing = os.pipe()
        os.set_blocking(self._news, False)
        self._code: int | None = None
        ends = [str(reading), str(writing), str(grace_seconds)]
        wrapped = [sys.executable, "-I", watchdog.__file__, *ends]
        try:
            self._process = subprocess.Popen(
                [*wrapped, *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(reading, writing),
                start_new_session=True,
            )
        finally:
            os.close(reading)
            os.close(writing)
        assert self._process.stdout is not None
        self._pump = threading.Thread(
            target=self._copy_log, args=(self._process.stdout, log), daemon=True
        )
        self._pump.start()

    def exit_code(self) -> int | None:
        """How the server ended; null while it runs.

        Known at once, although what it started may still have its time to end.
        """
        if self._code is None:
            with contextlib.suppress(BlockingIOError):
                told = os.read(self._news, 16)
                self._code = int(told) if told else self._process.wait()
            if self._code is not None:
                self._pump.join(timeout=0.5)
        return self._code

    def tail(self, lines: int) -> str:
        """The last lines of the log."""
        return "\n".join(list(self._tail)[-lines:])

    def stop(self) -> None:
        """End the whole process group; returns when nothing of it is left."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        try:
            self._process.wait(timeout=self._grace_seconds + 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._kill_session()
        self._pump.join(timeout=2.0)
        if self._news >= 0:
            self.exit_code()
            os.close(self._news)
            self._news = -1

    def _kill_session(self) -> None:
        """Kill what a watchdog that was itself killed could not."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                session = int(stat.read_text().rpartition(")")[2].split()[3])
                if session == self._process.pid:
                    os.kill(int(stat.parent.name), signal.SIGKILL)

    def _copy_log(self, output: IO[bytes], log: Path) -> None:
        with output, log.open("ab", buffering=0) as file:
            for line in output:
                text = line.decode(errors="surrogateescape")  # odd bytes come out as they are
                masked = self._secrets.mask(text).encode(errors="surrogateescape")
                self._tail.append(masked.decode(errors="replace").rstrip())
                with contextlib.suppress(OSError):  # a full disk must not end the server
                    file.write(masked)
