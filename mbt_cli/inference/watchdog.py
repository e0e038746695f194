"""Runs a server and stops it when the process that started it is gone; a stand-alone script.

    python watchdog.py LIFELINE NEWS GRACE COMMAND...

The parent holds the write end of the pipe LIFELINE. When that closes, because the parent exited or
was killed, the server's whole process group gets SIGTERM, and SIGKILL after GRACE seconds. When the
server exits on its own, the watchdog writes its exit code to the pipe NEWS at once and stops the
rest of its process group in the same way. It imports only the standard library, so that it starts
fast.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 0.5


def main(lifeline: int, news: int, grace_seconds: float, command: list[str]) -> int:
    """Run the command until it exits or the lifeline closes; returns its exit code."""
    for end in (lifeline, news):
        os.set_inheritable(end, False)
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # only the lifeline decides
    parent = os.getppid()
    watcher = os.getpid()

    def before_exec() -> None:
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != watcher:
            os._exit(1)

    try:
        # this process has one thread, so running code between fork and exec is safe here
        server = subprocess.Popen(command, preexec_fn=before_exec, process_group=0)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127
    _wait(server, lifeline, parent)
    if server.returncode is not None:
        with contextlib.suppress(BrokenPipeError):
            os.write(news, str(_shell_code(server.returncode)).encode())
    return _end(server, grace_seconds)


def _wait(server: "subprocess.Popen[bytes]", lifeline: int, parent: int) -> None:
    """Wait until the server exits, the lifeline closes, or the parent changes."""
    ended = os.pidfd_open(server.pid)
    while server.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([lifeline, ended], [], [], _LOOK_SECONDS)
        if lifeline in readable:
            return


def _end(server: "subprocess.Popen[bytes]", grace_seconds: float) -> int:
    """Stop the process group and its descendants; returns the server's exit code."""
    _signal_group(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline and (server.poll() is None or _orphans(server.pid)):
        time.sleep(0.02)
    _signal_group(server.pid, signal.SIGKILL)
    code = server.wait()
    for pid in _orphans(server.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return _shell_code(code)


def _shell_code(code: int) -> int:
    """The exit code as a shell reports it: 128 plus the signal's number after a signal."""
    return code if code >= 0 else 128 - code


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _orphans(server: int) -> list[int]:
    """Descendants of the server that lost their parent; this process is their subreaper."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        children = [int(pid) for pid in listed.read_text().split()]
    except OSError:
        return []
    return [pid for pid in children if pid != server and not _has_ended(pid)]


def _has_ended(child: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(child, os.WNOHANG)[0] == child
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
