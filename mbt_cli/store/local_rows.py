"""Local files whose rows stand in for a stage: which they are, and what columns they have."""

import csv
from pathlib import Path

import orjson
import polars as pl

from mbt_cli.core.column_maps import ColumnMap
from mbt_cli.errors import ArtifactError
from mbt_cli.store.lineage import ROWS
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
