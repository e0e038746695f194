"""Reading artifacts: never one that is unfinished, cut off, or not what its lineage says."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from mbt_cli.errors import ArtifactError, MissingInputError
from mbt_cli.store.artifacts import FILES, FINGERPRINT_KEY
from mbt_cli.store.cells import axes_of
from mbt_cli.store.disk import sha256_of_file
from mbt_cli.store.lineage import LINEAGE, ROWS, Lineage, read_lineage
from mbt_cli.store.parquet import footer_metadata, row_count

_HINT = "restore the file, or make the cell again with `--replace`"


def require_lineage(folder: Path) -> Lineage:
    """The lineage of a cell that must be finished.

    Raises:
        MissingInputError: It is not finished.
        ArtifactError: lineage.json is damaged or of an unknown layout.
    """
    lineage = read_lineage(folder)
    if lineage is None:
        raise MissingInputError(f"`{folder}` holds no finished artifact")
    return lineage


def read_rows(folder: Path, lineage: Lineage | None = None) -> pl.LazyFrame:
    """Rows of a finished cell; length, footer and fingerprint are checked, hashes are not.

    Raises:
        MissingInputError: The cell is not finished.
        ArtifactError: rows.parquet is not the file its lineage tells of.
    """
    return read_parquet_file(folder, ROWS, lineage or require_lineage(folder))


def read_parquet_file(folder: Path, name: str, lineage: Lineage) -> pl.LazyFrame:
    """A Parquet file of an artifact, such as `files/summary.parquet`, checked as rows are."""
    problems = list(_quick_problems(folder, name, lineage))
    if problems:
        raise ArtifactError(problems[0], hint=_HINT)
    return pl.scan_parquet(folder / name, glob=False, hive_partitioning=False)


def verify(folder: Path) -> list[str]:
    """Everything about a finished cell that is not as its lineage says; empty when all is well.

    Every byte is read.

    Raises:
        MissingInputError: The cell is not finished.
        ArtifactError: lineage.json is damaged or of an unknown layout.
    """
    lineage = require_lineage(folder)
    problems = list(_content_problems(folder, lineage))
    if not problems and ROWS in lineage.files and row_count(folder / ROWS) != lineage.rows:
        problems.append(
            f"`{folder / ROWS}` has {row_count(folder / ROWS)} rows, its lineage says "
            f"{lineage.rows}"
        )
    for path in sorted((folder / FILES).rglob("*")):
        if path.is_file() and path.relative_to(folder).as_posix() not in lineage.files:
            problems.append(f"`{path}` is not in the lineage")
    return problems


def input_sha256(folder: Path, lineage: Lineage | None = None) -> str:
    """Read every byte of an artifact that becomes an input, and give its one hash.

    Returns:
        `Lineage.content_sha256`, which stands in the lineage of whatever reads it.

    Raises:
        MissingInputError: The cell is not finished.
        ArtifactError: A file is not the one its lineage tells of.
    """
    lineage = lineage or require_lineage(folder)
    for problem in _content_problems(folder, lineage):
        raise ArtifactError(problem, hint=_HINT)
    return lineage.content_sha256()


def finished_cells(stage_folder: Path) -> list[tuple[Path, Lineage]]:
    """Folder and lineage of every finished cell of a stage, by address."""
    paths = sorted(stage_folder.rglob(LINEAGE))
    return [(path.parent, require_lineage(path.parent)) for path in paths]


def scan(stage_folder: Path, name: str = ROWS) -> pl.LazyFrame:
    """One Parquet file of every finished cell of a stage, all axes as text columns.

    Args:
        stage_folder: `runs/<study>/<stage>`.
        name: The file within each cell, such as `files/summary.parquet`.

    Returns:
        The files' columns, then `address`, then one column an axis. Values such as `1e-4` stay
        text.

    Raises:
        MissingInputError: The stage has no finished cell.
        ArtifactError: A file is not the one its lineage tells of.
    """
    cells = finished_cells(stage_folder)
    if not cells:
        raise MissingInputError(f"`{stage_folder}` holds no finished artifact")
    return scan_cells(cells, name)


def scan_cells(cells: list[tuple[Path, Lineage]], name: str = ROWS) -> pl.LazyFrame:
    """The same for chosen cells, of several stages too; an axis a cell lacks is null."""
    frames = [
        read_parquet_file(folder, name, lineage).with_columns(
            pl.lit(lineage.address).alias("address"),
            *(pl.lit(value).alias(axis) for axis, value in axes_of(lineage.address).items()),
        )
        for folder, lineage in cells
    ]
    return pl.concat(frames, how="diagonal")


def _quick_problems(folder: Path, name: str, lineage: Lineage) -> Iterator[str]:
    path = folder / name
    record = lineage.files.get(name)
    if record is None:
        yield f"`{folder}` has no file `{name}` by its lineage"
        return
    if not path.is_file():
        yield f"`{path}` is missing"
        return
    length = path.stat().st_size
    if length != record.bytes:
        yield f"`{path}` has {length} bytes, its lineage says {record.bytes}"
        return
    if path.suffix == ".parquet":
        found = footer_metadata(path).get(FINGERPRINT_KEY, lineage.fingerprint)
        if found != lineage.fingerprint:
            yield (
                f"`{path}` was made with the fingerprint {found[:12]}…, its lineage says "
                f"{lineage.fingerprint[:12]}…"
            )


def _content_problems(folder: Path, lineage: Lineage) -> Iterator[str]:
    for name, record in lineage.files.items():
        quick = list(_quick_problems(folder, name, lineage))
        yield from quick
        if not quick and sha256_of_file(folder / name) != record.sha256:
            yield f"`{folder / name}` has other bytes than its lineage says (sha256 differs)"
