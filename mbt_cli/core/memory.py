"""Memory of this process: its use, its limit, and the allocator of the C library."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

# names of mallopt(3) in glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def return_freed_memory() -> None:
    """Return freed memory to the operating system.

    The C library keeps the memory of freed buffers, about 70 MiB after 2,048 requests in flight.
    Does nothing if the C library has no such call.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Keep freed memory for later allocations, until `return_freed_memory` is called.

    Does nothing if the C library has no such call.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


def held_share() -> float:
    """Fraction of the memory limit in use; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / allowed_bytes()


def allowed_bytes(root: Path = Path("/")) -> int:
    """Memory limit of this process: the machine's memory, or a lower limit of its control groups.

    Args:
        root: Where `proc` and `sys` are.
    """
    allowed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for group in control_groups(root):
        with contextlib.suppress(OSError, ValueError):
            text = (group / "memory.max").read_text(encoding="ascii")
            allowed = min(allowed, int(text))  # `max` means no limit
    return allowed


def control_groups(root: Path = Path("/")) -> Iterator[Path]:
    """Folders of this process's control group and of those above it, which may have lower limits.

    Args:
        root: Where `proc` and `sys` are.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    own = next((line[len("0::/") :] for line in groups if line.startswith("0::/")), "")
    folder = Path("sys/fs/cgroup", own)
    yield from (root / group for group in (folder, *folder.parents))
