"""Writing the artifact of one cell: everything is on the disk before lineage.json says so.

    rows.parquet.partial, files.partial/    while rows arrive; a crash leaves them, the next
                                            writer removes them
    lineage.json.partial                    everything above is complete and on the disk
    rows.parquet, files/                    renamed
    lineage.json                            renamed last: the cell is finished

A crash between the last three steps is completed by `complete_finish`, so a finished cell that is
extended is never without a whole artifact.
"""

import shutil
from collections import Counter
from pathlib import Path
from types import TracebackType

import polars as pl

from mbt_cli.store import provenance
from mbt_cli.store.disk import sha256_of_file, sync_folder, write_atomically, writing_to
from mbt_cli.store.lineage import (
    LINEAGE,
    ROWS,
    FileRecord,
    Lineage,
    Tokens,
    lineage_json,
    parse_lineage,
)
from mbt_cli.store.parquet import ParquetStream

FILES = "files"
FAILURE = "failure.json"
JOURNAL = "journal"
FINGERPRINT_KEY = "mbt.fingerprint"
ADDRESS_KEY = "mbt.address"
_PARTIAL = ".partial"
_LINEAGE_PARTIAL = f"{LINEAGE}{_PARTIAL}"


class ArtifactWriter:
    """The artifact of one cell while it is made; a context that finishes or leaves no half.

    Args:
        folder: The cell's folder; made if it is not there. The caller holds its lock.
        schema: Columns of rows.parquet.
        address: Address of the cell.
        fingerprint: Fingerprint of the cell; both stand in the Parquet footer.

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
        """Where anything but rows goes; becomes `files/`."""

    def __enter__(self) -> "ArtifactWriter":
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            _remove(self.files)
            self.files.mkdir()
            (self._folder / _LINEAGE_PARTIAL).unlink(missing_ok=True)
        self._stream = ParquetStream(
            self._folder / f"{ROWS}{_PARTIAL}",
            self._schema,
            {FINGERPRINT_KEY: self._fingerprint, ADDRESS_KEY: self._address},
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
            ArtifactError: The columns are not those of the schema, or the disk refuses.
        """
        self._stream.append(frame)
        self._tally.add(frame)

    def finish(self, lineage: Lineage) -> Lineage:
        """Complete the artifact and write lineage.json; the journal is no longer needed then.

        Args:
            lineage: What the caller knows; files, rows, failures, tokens, columns, code, packages
                and host are filled in here.

        Returns:
            The lineage as written.

        Raises:
            ArtifactError: The disk refuses; an earlier artifact of this cell is still whole.
        """
        rows = self._stream.finish()
        self._finished = True
        with writing_to(self.files):
            files = {ROWS: rows, **_file_records(self.files)}
        made_by = provenance.collected()
        written = lineage.model_copy(
            update={
                "files": files,
                "columns": {name: str(dtype) for name, dtype in self._schema.items()},
                **self._tally.fields(),
                "code": made_by.code,
                "packages": made_by.packages,
                "host": made_by.host,
            }
        )
        write_atomically(self._folder / _LINEAGE_PARTIAL, lineage_json(written))
        _publish(self._folder)
        return written


def complete_finish(folder: Path) -> Lineage | None:
    """Finish what a crash interrupted after everything was on the disk; call it under the lock.

    Returns:
        The lineage that was brought into place, None where there was nothing to complete.
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


def _is_complete(folder: Path, lineage: Lineage) -> bool:
    for name, record in lineage.files.items():
        head, _, rest = name.partition("/")
        partial = folder / f"{head}{_PARTIAL}"
        path = (partial if partial.exists() else folder / head) / rest
        if not path.is_file() or path.stat().st_size != record.bytes:
            return False
    return True


def _publish(folder: Path) -> None:
    """Rename what is complete into place, lineage.json last; can be repeated after a crash."""
    with writing_to(folder):
        rows, files = folder / f"{ROWS}{_PARTIAL}", folder / f"{FILES}{_PARTIAL}"
        # from here to the last rename the cell counts as unfinished, and `complete_finish` ends it
        (folder / LINEAGE).unlink(missing_ok=True)
        if rows.exists():
            rows.replace(folder / ROWS)
        if files.exists():
            _remove(folder / FILES)
            files.rename(folder / FILES)
        sync_folder(folder)
        (folder / _LINEAGE_PARTIAL).replace(folder / LINEAGE)
        sync_folder(folder)
        (folder / FAILURE).unlink(missing_ok=True)
        _remove(folder / JOURNAL)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _file_records(folder: Path) -> dict[str, FileRecord]:
    records = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = f"{FILES}/{path.relative_to(folder).as_posix()}"
            digest = sha256_of_file(path, sync=True)
            records[name] = FileRecord(bytes=path.stat().st_size, sha256=digest)
    return records


class _Tally:
    """Counts over all rows that a lineage tells."""

    def __init__(self) -> None:
        self._rows = 0
        self._failures: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def add(self, frame: pl.DataFrame) -> None:
        self._rows += frame.height
        if "failure" in frame.columns:
            reasons = frame["failure"].drop_nulls().cast(pl.String)
            self._failures.update(reason.partition(":")[0] for reason in reasons)
        for kind in ("prompt", "completion", "reasoning"):
            if f"{kind}_tokens" in frame.columns:
                self._tokens[kind] += int(frame[f"{kind}_tokens"].sum())

    def fields(self) -> dict[str, object]:
        return {
            "rows": self._rows,
            "failed_rows": self._failures.total(),
            "failures": dict(sorted(self._failures.items())),
            "tokens": Tokens(**self._tokens),
        }
