"""Which process this is, and whether another one still lives."""

import os
import socket
from functools import lru_cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_SPACE = Path("/proc/self/ns/pid")
_STATE_FIELD, _START_FIELD = 0, 19  # of /proc/PID/stat behind the name in brackets


def host_name() -> str:
    """Name of this machine."""
    return socket.gethostname()


@lru_cache(maxsize=1)
def process_space() -> str:
    """Names the set of processes within which a pid means one process.

    Equal for two processes only when they run on the same machine, since the same start of it,
    and in the same container.
    """
    try:
        space = f"{_BOOT.read_text(encoding='ascii').strip()}/{_PROCESS_SPACE.readlink()}"
    except OSError:
        space = ""  # not Linux: the host name alone must do
    return f"{host_name()}/{space}"


def start_of(pid: int) -> int | None:
    """When a living process began, in clock ticks since boot; None for a dead one.

    Where the system does not tell, a living process gives 0.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return None if _BOOT.exists() else _start_without_proc(pid)
    except ProcessLookupError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[_STATE_FIELD] in (b"Z", b"X") else int(fields[_START_FIELD])


def _start_without_proc(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0
