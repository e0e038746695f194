"""Servers and trainings that an mbt left behind, and their end.

mbt starts each below a watchdog (inference/watchdog.py) that ends it when mbt is gone, however it
went. What is left after all is what outlived its watchdog too, such as a worker of a server whose
watchdog was killed. A watchdog leads a session of its own, has a pipe whose other end its mbt
holds while it lives, and gives the server a key in the environment: by these three they are told
apart from all other processes. Whatever cannot be seen for sure is left alone.
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
"""Time that processes have to end by themselves after SIGTERM."""
_PROC = Path("/proc")
_WATCHDOG = Path(watchdog.__file__).name
_PACKAGE = "mbt_cli"
_KEY = b"MBT_SERVER_KEY="
_SHOWN = 100
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this user.

    Args:
        session: Process that leads its session.
        group: Process that leads its group.
        command: Program and arguments.
        key: What tells its server from others; empty for a process that mbt did not start.
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
    """What is left of one server or training: its processes, all of this user."""

    processes: tuple[Process, ...]

    @property
    def words(self) -> str:
        """Its processes and what they run, for people."""
        shown = next((p for p in self.processes if not p.is_watchdog), self.processes[0])
        pids = ", ".join(str(process.pid) for process in self.processes)
        return f"processes {pids}: {' '.join(shown.command)[:_SHOWN]}"


def find_orphans() -> Sequence[Orphans]:
    """Servers and trainings whose mbt is gone; those of a living one are left out."""
    processes = {process.pid: process for process in _processes()}
    own = set(_ancestry(os.getpid(), processes))
    groups: dict[object, list[Process]] = {}
    for process in processes.values():
        if process.pid not in own and _is_left_behind(process, processes):
            groups.setdefault(process.key or process.session, []).append(process)
    return [Orphans(tuple(sorted(found, key=lambda p: p.pid))) for found in groups.values()]


def orphan_findings() -> Iterator[Finding]:
    """A line for each, or one that says there is none."""
    found = find_orphans()
    if not found:
        yield ok("servers", "left behind", "none")
    for orphans in found:
        yield absent("servers", "left behind", orphans.words, "mbt doctor --stop-orphans")


def stop_orphans(grace_seconds: float = GRACE_SECONDS) -> Sequence[Orphans]:
    """End every process group that an mbt left behind; gives what was ended.

    Args:
        grace_seconds: Time between SIGTERM and SIGKILL.
    """
    found = find_orphans()
    left = {p.group: p for orphans in found for p in orphans.processes}
    left.pop(os.getpgrp(), None)
    for group in left:
        _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(_lives(group) for group in left) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    for group in left:
        _signal(group, signal.SIGKILL)
    return found


def _processes() -> Iterator[Process]:
    """Every process of this user that can be looked at."""
    for folder in _PROC.glob("[0-9]*"):
        # it may end at any moment, or belong to somebody else
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
    """Whether mbt started a process, and no living mbt is above it.

    Whatever a server starts stays below its watchdog, which adopts what loses its parent.
    """
    leader = processes.get(process.session)
    if leader is not None and not leader.is_watchdog and not leader.key:
        return False  # a shell with the variable set by hand
    if not process.key and (leader is None or not leader.is_watchdog):
        return False
    above = [processes[pid] for pid in _ancestry(process.pid, processes) if pid in processes]
    return not any(p.is_watchdog and _is_held(p) for p in above)


def _is_held(process: Process) -> bool:
    """Whether the parent of a watchdog holds the other end of its lifeline: it is a living mbt."""
    position = next(n for n, word in enumerate(process.command) if word.endswith(_WATCHDOG))
    try:
        lifeline = (_PROC / str(process.pid) / "fd" / process.command[position + 1]).readlink()
    except (OSError, IndexError):
        return process.parent != 1  # closed or not to be seen: with its parent there, leave it
    try:
        held = {link.readlink() for link in (_PROC / str(process.parent) / "fd").iterdir()}
    except PermissionError:
        return True
    except OSError:
        return False
    return lifeline in held


def _ancestry(pid: int, processes: Mapping[int, Process]) -> list[int]:
    """A process and all that it descends from, as far as they can be looked at."""
    found = [pid]
    while (process := processes.get(pid)) is not None and process.parent not in found:
        pid = process.parent
        found.append(pid)
    return found


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _lives(group: int) -> bool:
    """Whether a group has a process that is no zombie."""
    return any(process.group == group for process in _processes())
