"""The free space of a disk, for messages."""

import shutil
from pathlib import Path


def free_space(path: Path) -> str:
    """The free space where `path` is or would be, such as `2.1 GB`; empty if unknown.

    Example:
        >>> free_space(Path("/")).split()[1] in ("kB", "MB", "GB")
        True
    """
    folder = next((p for p in (path, *path.absolute().parents) if p.is_dir()), None)
    try:
        free = 0 if folder is None else shutil.disk_usage(folder).free
    except OSError:
        return ""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if free >= size:
            return f"{free / size:,.1f} {unit}"
    return f"{free / 1000:.0f} kB"
