"""Rows from the hub, or from a local file, that stand in for a stage."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import polars as pl

from mbt_cli.core.column_maps import ColumnMap, SourcePreset, mapped_rows
from mbt_cli.errors import ArtifactError, UsageError
from mbt_cli.store.hub import HubAccess, HubRequest, fetch_files
from mbt_cli.store.lineage import ROWS
from mbt_cli.store.questions import file_sha256
from mbt_cli.store.records import data_files, parquet_columns


def pattern_of(source: str) -> str:
    """The files that a path means: a cell's rows, an export's shards, a folder's Parquet files."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return str(path)
    if (path / ROWS).is_file():
        return str(path / ROWS)
    return str(path / ("data/*.parquet" if (path / "data").is_dir() else "*.parquet"))


def own_columns(source: str, schema: pl.Schema, told: ColumnMap) -> ColumnMap:
    """A map for files that have mbt's own columns: each becomes the column of the same name.

    Raises:
        MissingInputError: There is no file.
        ArtifactError: The file cannot be read.
    """
    there = _columns(data_files(pattern_of(source))[0])
    columns = {name: name for name in schema if name in there}
    return told.model_copy(update={"columns": columns})


def _columns(path: Path) -> frozenset[str]:
    try:
        match path.suffix:
            case ".jsonl":
                with path.open("rb") as lines:
                    first = orjson.loads(next(lines, b"{}"))
                return frozenset(first if isinstance(first, dict) else ())
            case ".csv":
                with path.open(encoding="utf-8", newline="") as lines:
                    return frozenset(next(csv.reader(lines), []))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"`{path}` cannot be read: {error}") from error
    return parquet_columns(path)


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows in mbt's columns and what they came from.

    Args:
        files: Name of each file that was read to its sha256.
        revision: Commit of the repository; None for local files.
    """

    frame: pl.DataFrame
    files: Mapping[str, str]
    revision: str | None


def read_published(
    source: SourcePreset, axes: Mapping[str, str], schema: pl.Schema, hub: HubAccess
) -> SourceRows:
    """A cell's rows from a data set on the hub (or a folder in its layout).

    Args:
        source: Where the data set is and how its columns are read.
        axes: The cell's axes, which choose the configuration and the split.
        schema: `rows.ROLLOUTS` or `rows.TRACES`.
        hub: Cache, and whether the network may be used.

    Raises:
        MissingInputError: The repository or its files are not there, or not cached while offline.
        UsageError: The columns do not fit; the message says which.
        ArtifactError: A file cannot be read.
    """
    try:
        request = HubRequest(source.repo, (source.files(axes),), source.revision)
    except ValueError as error:
        raise UsageError(str(error)) from error
    found = fetch_files(request, hub)
    return _read(found.paths, source, schema, source.repo, found.commit)


def read_foreign(pattern: str, source: ColumnMap, schema: pl.Schema) -> SourceRows:
    """Rows of local Parquet, JSON lines or CSV files; errors as `read_published`."""
    return _read(data_files(Path(pattern).expanduser()), source, schema, pattern, None)


def _read(
    paths: Sequence[Path], source: ColumnMap, schema: pl.Schema, name: str, commit: str | None
) -> SourceRows:
    frame = pl.concat([_frame(path) for path in paths])
    try:
        mapped = mapped_rows(frame, source, schema)
    except ValueError as error:
        raise UsageError(f"`{name}`: {error}", hint="correct its column map") from error
    return SourceRows(mapped, {path.name: file_sha256(path) for path in paths}, commit)


def _frame(path: Path) -> pl.DataFrame:
    try:
        match path.suffix:
            case ".parquet":
                return pl.read_parquet(path)
            case ".jsonl":
                return pl.read_ndjson(path, infer_schema_length=None)
            case ".csv":
                return pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ArtifactError(f"`{path}` cannot be read: {error}") from error
    raise UsageError(f"`{path}` ends in `{path.suffix}`; rows come in .parquet, .jsonl or .csv")
