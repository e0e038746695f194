"""Rows of other programs, from local files or the hub, in mbt's columns."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import polars as pl

from mbt_cli.core.column_maps import ColumnMap, SourcePreset, mapped_rows
from mbt_cli.errors import ArtifactError, UsageError
from mbt_cli.store.disk import file_sha256
from mbt_cli.store.hub import HubAccess, HubRequest, fetch_files
from mbt_cli.store.lineage import ROWS
from mbt_cli.store.records import data_files, parquet_columns, read_frame


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows in mbt's columns, and where they come from.

    Args:
        files: Name of each file to its sha256.
        revision: Commit of the hub repository; None for local files.
    """

    frame: pl.DataFrame
    files: Mapping[str, str]
    revision: str | None


def read_published(
    source: SourcePreset, axes: Mapping[str, str], schema: pl.Schema, hub: HubAccess
) -> SourceRows:
    """A cell's rows from a data set on the hub, or in a folder with the same layout.

    Args:
        source: Repository of the data set, and the map of its columns.
        axes: The cell's axes, which select the configuration and the split.
        schema: `rows.ROLLOUTS` or `rows.TRACES`.
        hub: Access to the hub.

    Raises:
        MissingInputError: The repository or its files do not exist, or are not cached while
            offline.
        UsageError: The column map does not fit the columns.
        ArtifactError: A file cannot be read.
    """
    try:
        request = HubRequest(source.repo, (source.files(axes),), source.revision)
    except ValueError as error:
        raise UsageError(str(error)) from error
    found = fetch_files(request, hub)
    return _read(found.paths, source, schema, source.repo, found.commit)


def read_foreign(pattern: str, source: ColumnMap, schema: pl.Schema) -> SourceRows:
    """Rows of local Parquet, JSON lines or CSV files; raises as `read_published`."""
    return _read(data_files(Path(pattern).expanduser()), source, schema, pattern, None)


def _read(
    paths: Sequence[Path], source: ColumnMap, schema: pl.Schema, name: str, commit: str | None
) -> SourceRows:
    frame = pl.concat([read_frame(path, "rows") for path in paths])
    try:
        mapped = mapped_rows(frame, source, schema)
    except ValueError as error:
        raise UsageError(f"`{name}`: {error}", hint="correct its column map") from error
    return SourceRows(mapped, {path.name: file_sha256(path) for path in paths}, commit)


def pattern_of(source: str) -> str:
    """Pattern of a path's files: a cell's rows, an export's shards, a folder's Parquet files."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return str(path)
    if (path / ROWS).is_file():
        return str(path / ROWS)
    return str(path / ("data/*.parquet" if (path / "data").is_dir() else "*.parquet"))


def own_columns(source: str, schema: pl.Schema, columns: ColumnMap) -> ColumnMap:
    """The map with every column of the schema that the files have under the same name.

    Raises:
        MissingInputError: The file does not exist.
        ArtifactError: The file cannot be read.
    """
    names = _column_names(data_files(pattern_of(source))[0])
    return columns.model_copy(update={"columns": {name: name for name in schema if name in names}})


def _column_names(path: Path) -> frozenset[str]:
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
