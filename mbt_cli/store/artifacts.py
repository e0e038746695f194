"""Writing the artifact of a cell: lineage.json appears only after everything else is on the disk.

    rows.parquet.partial, files.partial/    while rows arrive; the next writer removes what a
                                            crash leaves
    lineage.json.partial                    everything above is complete and on the disk
    rows.parquet, files/                    renamed; the journal is removed
    lineage.json                            renamed last: the cell is finished

`complete_finish` completes the last three steps after a crash, so a finished cell that is extended
always has a whole artifact, and a finished cell never keeps a journal.
"""

import shutil
from collections import Counter
from pathlib import Path
from types import TracebackType

import polars as pl

from mbt_cli.store import provenance
from mbt_cli.store.cells import FAILURE, FILES, JOURNAL
from mbt_cli.store.disk import sha256_of_file, sync_folder, write_atomically, writing_to
from mbt_cli.store.lineage import (
    LINEAGE,
    ROWS,
    FileRecord,
    Lineage,
    Tokens,
    lineage_json,
    parse_lineage,
    sealed,
)
from mbt_cli.store.parquet import FINGERPRINT_KEY, ParquetStream

_PARTIAL = ".partial"
_LINEAGE_PARTIAL = f"{LINEAGE}{_PARTIAL}"


class ArtifactWriter:
    """The artifact of a cell while it is written; without `finish` the context leaves none.

    Args:
        folder: The cell's folder, created if missing. The caller holds its lock.
        schema: Columns of rows.parquet.
        address: Address of the cell.
        fingerprint: Fingerprint of the cell; both enter the Parquet footer.

    Raises:
        ArtifactError: The folder cannot be written, or the disk is full.
    """

    def __init__(self, folder: Path, schema: pl.Schema, *, address: str, fingerprint: str) -> None:
        self._folder = folder
        self._schema = schema
        self._address = address
        self._fingerprint = fingerprint
        self._tally = _Tally()
        self._finished = False
        self.files = folder / f"{FILES}{_PARTIAL}"
        """Folder for all other files; becomes `files/`."""

    def __enter__(self) -> "ArtifactWriter":
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob(f"*{_PARTIAL}"):
                _remove(left)
            self.files.mkdir()
        self._stream = ParquetStream(
            self._folder / f"{ROWS}{_PARTIAL}",
            self._schema,
            {FINGERPRINT_KEY: self._fingerprint, "mbt.address": self._address},
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._finished:
            self._stream.abandon()

    def write(self, frame: pl.DataFrame) -> None:
        """Append rows, in bounded memory.

        Raises:
            ArtifactError: The columns differ from the schema, or the file cannot be written.
        """
        self._stream.append(frame)
        self._tally.add(frame)

    def finish(self, lineage: Lineage) -> Lineage:
        """Complete the artifact, write lineage.json, and remove the journal.

        Args:
            lineage: The caller's part; files, rows, failures, tokens, columns, code, packages and
                host are added here.

        Returns:
            The lineage as written.

        Raises:
            ArtifactError: The files cannot be written; an earlier artifact of the cell is intact.
        """
        rows = self._stream.finish()
        self._finished = True
        with writing_to(self.files):
            files = {ROWS: rows, **_file_records(self.files)}
        origin = provenance.collected()
        written = sealed(
            lineage.model_copy(
                update={
                    "files": files,
                    "columns": {name: str(dtype) for name, dtype in self._schema.items()},
                    **self._tally.fields(),
                    "code": origin.code,
                    "packages": origin.packages,
                    "host": origin.host,
                }
            )
        )
        write_atomically(self._folder / _LINEAGE_PARTIAL, lineage_json(written))
        _publish(self._folder)
        return written


def unfinished_files(folder: Path) -> Path:
    """Where the files of a cell lie until it is finished."""
    return folder / f"{FILES}{_PARTIAL}"


def complete_finish(folder: Path) -> Lineage | None:
    """Complete an artifact whose writer crashed during the last renames; needs the cell's lock.

    Returns:
        The lineage of the completed artifact, None if there was nothing to complete.
    """
    path = folder / _LINEAGE_PARTIAL
    if not path.exists():
        return None
    lineage = parse_lineage(path.read_bytes(), path)
    if not _is_complete(folder, lineage):
        with writing_to(path):
            path.unlink()
        return None
    _publish(folder)
    return lineage


def can_complete_finish(folder: Path) -> bool:
    """Whether every part of an artifact is there, and only its last renames are missing."""
    path = folder / _LINEAGE_PARTIAL
    return path.exists() and _is_complete(folder, parse_lineage(path.read_bytes(), path))


def _is_complete(folder: Path, lineage: Lineage) -> bool:
    for name, record in lineage.files.items():
        head, _, rest = name.partition("/")
        partial = folder / f"{head}{_PARTIAL}"
        path = (partial if partial.exists() else folder / head) / rest
        if not path.is_file() or path.stat().st_size != record.bytes:
            return False
    return True


def _publish(folder: Path) -> None:
    """Rename the complete parts into place, lineage.json last; can be repeated after a crash."""
    with writing_to(folder):
        rows, files = folder / f"{ROWS}{_PARTIAL}", folder / f"{FILES}{_PARTIAL}"
        # until the last rename the cell is unfinished, and `complete_finish` can complete it
        (folder / LINEAGE).unlink(missing_ok=True)
        if rows.exists():
            rows.replace(folder / ROWS)
        if files.exists():
            _remove(folder / FILES)
            files.rename(folder / FILES)
        sync_folder(folder)
        (folder / FAILURE).unlink(missing_ok=True)
        # a network file system may refuse while a file is open: no reason to leave the cell undone
        shutil.rmtree(folder / JOURNAL, ignore_errors=True)
        (folder / _LINEAGE_PARTIAL).replace(folder / LINEAGE)
        sync_folder(folder)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _file_records(folder: Path) -> dict[str, FileRecord]:
    records = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = f"{FILES}/{path.relative_to(folder).as_posix()}"
            digest = sha256_of_file(path, is_synced=True)
            records[name] = FileRecord(bytes=path.stat().st_size, sha256=digest)
    return records


class _Tally:
    """Counts over all rows, for the lineage."""

    def __init__(self) -> None:
        self._rows = 0
        self._failures: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def add(self, frame: pl.DataFrame) -> None:
        self._rows += frame.height
        if "failure" in frame.columns:
            reasons = frame["failure"].drop_nulls().cast(pl.String)
            self._failures.update(reason.partition(":")[0] for reason in reasons)
        kinds = [k for k in ("prompt", "completion", "reasoning") if f"{k}_tokens" in frame.columns]
        if "attempts" not in frame.columns or not kinds:
            return
        # replies that another cell has asked for have no attempts: its lineage counts them
        own = pl.col("attempts").ne_missing(0)
        totals = {kind: f"total_{kind}_tokens" for kind in kinds}  # of all steps of a program
        names = [t if t in frame.columns else f"{kind}_tokens" for kind, t in totals.items()]
        sums = frame.select(pl.col(name).filter(own).sum() for name in names)
        self._tokens.update(dict(zip(kinds, sums.row(0), strict=True)))

    def fields(self) -> dict[str, object]:
        return {
            "rows": self._rows,
            "failed_rows": self._failures.total(),
            "failures": dict(sorted(self._failures.items())),
            "tokens": Tokens(**self._tokens),
        }
