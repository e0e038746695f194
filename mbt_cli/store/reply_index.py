"""Finished cells of all studies of this machine, by what equal requests have in common.

The folder `replies` of the cache has 256 files of JSON lines, one line a cell. It is only a list
of places to look at: a folder that is gone, or that a line names wrongly, lends nothing. So no
lock is needed, and a line that was lost costs only requests.
"""

from pathlib import Path
from secrets import token_hex

import orjson

_FOLDER = "replies"
_MOST_BYTES = 1 << 18
"""Size from which a file loses its older half."""
_MOST_CELLS = 200
"""Cells of one group: later ones count."""


def record_cell(cache: Path, group: str, folder: Path) -> None:
    """Add a finished cell; without effect where the cache cannot be written.

    Args:
        cache: The cache folder of this machine.
        group: Hex hash of what equal requests have in common.
        folder: The cell's folder.
    """
    path = _file(cache, group)
    line = orjson.dumps({"group": group, "folder": str(folder.resolve())}) + b"\n"
    try:
        lines = _lines(path)
        if line in lines:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if sum(map(len, lines)) < _MOST_BYTES:
            with path.open("ab") as file:
                file.write(line)
            return
        partial = path.with_suffix(f".{token_hex(4)}.partial")
        partial.write_bytes(b"".join([*lines[len(lines) // 2 :], line]))
        partial.replace(path)
    except OSError:  # a full or read-only cache: nothing but later requests depends on it
        return


def recorded_cells(cache: Path, group: str) -> list[Path]:
    """Folders of finished cells of a group, in the order in which they were recorded."""
    found: dict[Path, None] = {}
    try:
        lines = _lines(_file(cache, group))
    except OSError:
        return []
    for line in lines:
        try:
            cell = orjson.loads(line)
            if cell["group"] == group:
                found[Path(cell["folder"])] = None
        except (orjson.JSONDecodeError, KeyError, TypeError):  # two processes wrote at once
            continue
    return list(found)[-_MOST_CELLS:]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.is_file() else []


def _file(cache: Path, group: str) -> Path:
    return cache / _FOLDER / f"{group[:2]}.jsonl"
