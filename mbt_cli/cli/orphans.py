"""Find and stop servers and trainings that an mbt process left behind.

mbt starts each of them under a watchdog (inference/watchdog.py), which ends it when mbt exits for
any reason. Only what outlived its watchdog remains, such as a worker of a server whose watchdog was
killed. Three signs identify such processes: the watchdog leads its own session, it has a pipe whose
other end the living mbt holds, and it passes the server a key in the environment. A process that
cannot be identified with certainty is left alone.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mbt_cli.core.findings import Finding, absent, ok
from mbt_cli.inference import watchdog

GRACE_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL."""
_PROC = Path("/proc")
_WATCHDOG = Path(watchdog.__file__).name
_PACKAGE = "mbt_cli"
_KEY = b"MBT_SERVER_KEY="
_MAX_SHOWN_CHARACTERS = 100
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this user.

    Args:
        session: Leader of its session.
        group: Leader of its group.
        command: Program and arguments.
        key: Key of its server; empty for a process that mbt did not start.
    """

    pid: int
    parent: int
    group: int
    session: int
    command: tuple[str, ...]
    key: bytes

    @property
    def is_watchdog(self) -> bool:
        """Whether it runs `mbt_cli/inference/watchdog.py`."""
        scripts = (Path(word) for word in self.command[1:4])
        return any(s.name == _WATCHDOG and _PACKAGE in s.parts for s in scripts)


@dataclass(frozen=True, slots=True)
class Orphans:
    """The remaining processes of one server or training, all of this user."""

    processes: tuple[Process, ...]

    @property
    def description(self) -> str:
        """Its process ids and command."""
        shown = next((p for p in self.processes if not p.is_watchdog), self.processes[0])
        pids = ", ".join(str(process.pid) for process in self.processes)
        return f"processes {pids}: {' '.join(shown.command)[:_MAX_SHOWN_CHARACTERS]}"


def find_orphans() -> Sequence[Orphans]:
    """Servers and trainings whose mbt process is gone."""
    processes = {process.pid: process for process in _processes()}
    own = set(_ancestry(os.getpid(), processes))
    groups: dict[object, list[Process]] = {}
    for process in processes.values():
        if process.pid not in own and _is_left_behind(process, processes):
            groups.setdefault(process.key or process.session, []).append(process)
    return [Orphans(tuple(sorted(found, key=lambda p: p.pid))) for found in groups.values()]


def orphan_findings() -> Iterator[Finding]:
    """One finding per orphan, or one finding if there are none."""
    found = find_orphans()
    if not found:
        yield ok("servers", "left behind", "none")
    for orphans in found:
        yield absent("servers", "left behind", orphans.description, "mbt doctor --stop-orphans")


def stop_orphans(grace_seconds: float = GRACE_SECONDS) -> Sequence[Orphans]:
    """Stop every process group that an mbt left behind, and return them.

    Args:
        grace_seconds: Time between SIGTERM and SIGKILL.
    """
    found = find_orphans()
    left = {p.group: p for orphans in found for p in orphans.processes}
    left.pop(os.getpgrp(), None)
    for group in left:
        _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(_is_alive(group) for group in left) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for group in left:
        _signal(group, signal.SIGKILL)
    return found


def _processes() -> Iterator[Process]:
    """Every readable process of this user."""
    for folder in _PROC.glob("[0-9]*"):
        # the process may end at any moment or belong to another user
        with contextlib.suppress(OSError, ValueError, IndexError):
            if folder.stat().st_uid == os.getuid():
                found = _process(folder)
                if found is not None:
                    yield found


def _process(folder: Path) -> Process | None:
    state, parent, group, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
    if state in ("Z", "X"):
        return None
    command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    variables = (folder / "environ").read_bytes().split(b"\0")
    key = next((v.removeprefix(_KEY) for v in variables if v.startswith(_KEY)), b"")
    return Process(int(folder.name), int(parent), int(group), int(session), tuple(command), key)


def _is_left_behind(process: Process, processes: Mapping[int, Process]) -> bool:
    """Whether mbt started the process and none of its ancestors is a living mbt.

    Everything that a server starts stays below its watchdog, which adopts orphaned children.
    """
    leader = processes.get(process.session)
    if leader is not None and not leader.is_watchdog and not leader.key:
        return False  # a shell with the variable set by hand
    if not process.key and (leader is None or not leader.is_watchdog):
        return False
    above = [processes[pid] for pid in _ancestry(process.pid, processes) if pid in processes]
    return not any(p.is_watchdog and _is_held(p) for p in above)


def _is_held(process: Process) -> bool:
    """Whether the watchdog's parent, a living mbt, holds the other end of its pipe."""
    position = next(n for n, word in enumerate(process.command) if word.endswith(_WATCHDOG))
    try:
        lifeline = (_PROC / str(process.pid) / "fd" / process.command[position + 1]).readlink()
    except (OSError, IndexError):
        return process.parent != 1  # closed or unreadable: leave it alone while its parent lives
    try:
        held = {link.readlink() for link in (_PROC / str(process.parent) / "fd").iterdir()}
    except PermissionError:
        return True
    except OSError:
        return False
    return lifeline in held


def _ancestry(pid: int, processes: Mapping[int, Process]) -> list[int]:
    """A process and its readable ancestors."""
    found = [pid]
    while (process := processes.get(pid)) is not None and process.parent not in found:
        pid = process.parent
        found.append(pid)
    return found


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _is_alive(group: int) -> bool:
    """Whether a group has a process that is not a zombie."""
    return any(process.group == group for process in _processes())
