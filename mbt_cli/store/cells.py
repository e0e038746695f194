"""The folder of a cell: its place, its failure record, and moving it aside."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.core.names import utc_name
from mbt_cli.core.secrets import mask_json
from mbt_cli.errors import MbtError
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.lineage import LINEAGE, ROWS, read_lineage

FILES = "files"
FAILURE = "failure.json"
JOURNAL = "journal"
REPLACED = ".replaced"
NOTES = "NOTES.md"
"""A file in a study's folder that is the user's own: mbt names it, and never writes it."""


def cell_folder(runs: Path, study: str, address: str) -> Path:
    """Folder of the cell `address` (`base/benchmark=tiny/...`) of a study.

    Raises:
        ValueError: The address points outside the study's folder.
    """
    parts = address.split("/")
    if not address or any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        raise ValueError(f"`{address}` is not a cell address")
    return runs.joinpath(study, *parts)


def published_steps(runs: Path, study: str, address: str) -> list[int]:
    """The steps of a training whose checkpoints are whole, in order."""
    found = cell_folder(runs, study, address).glob(f"step=[0-9]*/{LINEAGE}")
    return sorted(int(path.parent.name.partition("=")[2]) for path in found)


_ARTIFACT = (LINEAGE, ROWS, FILES, FAILURE)
"""lineage.json comes first: a crash after it leaves an unfinished cell, not a damaged one."""


def move_aside(
    runs: Path, study: str, folder: Path, *, now: datetime, names: Sequence[str] = _ARTIFACT
) -> Path | None:
    """Move a cell's artifact to `runs/.replaced/<study>/<time>/...`; logs and locks stay.

    Args:
        runs: The runs folder.
        study: Name of the study.
        folder: The cell's folder; the caller holds its lock.
        now: The time that names the target folder, UTC.
        names: What to move instead of the artifact.

    Returns:
        The new folder, None if there was nothing to move.

    Raises:
        ArtifactError: The file system refuses.
    """
    moved = [folder / name for name in names if (folder / name).exists()]
    if not moved:
        return None
    with writing_to(runs / REPLACED):
        target = runs / REPLACED / study / utc_name(now) / folder.relative_to(runs / study)
        while target.exists():  # a second time within the same second
            target = target.with_name(f"{target.name}+")
        target.mkdir(parents=True)
        for path in moved:
            path.rename(target / path.name)
    return target


def complete_move(runs: Path, study: str, folder: Path) -> None:
    """Complete a `move_aside` that a crash interrupted; the caller holds the cell's lock.

    Raises:
        ArtifactError: The file system refuses, or the lineage of a moved artifact is damaged.
    """
    left = [name for name in (ROWS, FILES) if (folder / name).exists()]
    moves, place = runs / REPLACED / study, folder.relative_to(runs / study)
    if not left or (folder / LINEAGE).exists() or not moves.is_dir():
        return
    for parent in (time / place.parent for time in sorted(moves.iterdir(), reverse=True)):
        for target in parent.iterdir() if parent.is_dir() else ():
            if target.name.rstrip("+") == place.name and _lacks(target, folder):
                with writing_to(target):
                    for name in left:
                        (folder / name).rename(target / name)
                return


def _lacks(target: Path, folder: Path) -> bool:
    """Whether files of a moved artifact are missing there, and all of them are in the folder."""
    lineage = read_lineage(target)
    if lineage is None:
        return False
    missing = [name for name in lineage.files if not (target / name).is_file()]
    sizes = {n: (folder / n).stat().st_size for n in missing if (folder / n).is_file()}
    return bool(missing) and sizes == {name: lineage.files[name].bytes for name in missing}


def record_failure(folder: Path, address: str, error: BaseException, *, now: datetime) -> None:
    """Write failure.json: the error that stopped the cell, with secrets masked."""
    record = {
        "address": address,
        "error": type(error).__name__,
        "message": error.message if isinstance(error, MbtError) else str(error),
        "hint": error.hint if isinstance(error, MbtError) else None,
        "failed_at": now.isoformat(),
    }
    write_atomically(folder / FAILURE, orjson.dumps(mask_json(record), option=orjson.OPT_INDENT_2))


def read_failure(folder: Path) -> dict[str, Json] | None:
    """The error that stopped the last run of a cell, None if there is none."""
    try:
        record = orjson.loads((folder / FAILURE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, orjson.JSONDecodeError):
        return None
    return record if isinstance(record, dict) else None
