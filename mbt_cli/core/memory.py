"""How much memory this process holds, and what the C library does with what it frees."""

import contextlib
import ctypes
import os
from pathlib import Path

# names of mallopt(3) in glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def return_freed_memory() -> None:
    """Give freed memory back to the operating system; what follows then has room.

    The C library keeps what thousands of buffers in flight have freed, some 70 MiB after 2,048
    of them. Does nothing where the C library has no such call.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Keep freed memory for what is allocated next, until it is given back by hand.

    Does nothing where the C library has no such call.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


def held_share() -> float:
    """Share of the memory that it may take which this process holds; 0 where nobody says."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / allowed_bytes()


def allowed_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may take: the machine's, or less by its control groups.

    Args:
        root: Where `proc` and `sys` are.
    """
    allowed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return allowed
    own = next((line[len("0::/") :] for line in groups if line.startswith("0::/")), "")
    folder = Path("sys/fs/cgroup", own)
    for group in (folder, *folder.parents):  # a job's limit may stand above its step's
        with contextlib.suppress(OSError, ValueError):
            text = (root / group / "memory.max").read_text(encoding="ascii")
            allowed = min(allowed, int(text))  # `max` is no limit, and no number
    return allowed
