"""Runs the real `mbt` on a terminal of its own: what it asks is answered, what it shows is read."""

import os
import pty
import select
import subprocess
import sys
import time


class OnTerminal:
    """`mbt ARGUMENTS` with stdin, stdout and stderr on a new pseudo-terminal."""

    def __init__(self, folder, *arguments: str, **environment: str) -> None:
        self._end, inside = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mbt_cli", *arguments],
            cwd=folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb", **environment},
            stdin=inside,
            stdout=inside,
            stderr=inside,
        )
        os.close(inside)

    def wait_for(self, text: str, seconds: float = 90) -> str:
        """Read until `text` is shown; gives everything shown so far."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, f"`{text}` never came: {self.shown}"
            if not self._read():
                assert text in self.shown, f"it ended before `{text}`: {self.shown}"
        return self.shown

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._end, f"{line}\n".encode())

    def finish(self, seconds: float = 60) -> int:
        """Wait for its end; gives the exit code."""
        deadline = time.monotonic() + seconds
        while self._read() or self.process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end: {self.shown}"
        os.close(self._end)
        return self.process.wait(30)

    def _read(self) -> bool:
        """Take what is there within half a second; false once nothing more can come."""
        if not select.select([self._end], [], [], 0.5)[0]:
            return self.process.poll() is None
        try:
            piece = os.read(self._end, 65536)
        except OSError:  # Linux's end of file on a terminal
            return False
        self.shown += piece.decode(errors="replace").replace("\r\n", "\n")
        return bool(piece)
