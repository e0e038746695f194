"""Rows from the hub, or from a local file, that stand in for a stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mbt_cli.core.column_maps import ColumnMap, SourcePreset, mapped_rows
from mbt_cli.errors import ArtifactError, UsageError
from mbt_cli.store.hub import HubAccess, HubRequest, fetch_files
from mbt_cli.store.records import data_files
from mbt_cli.store.source_files import file_sha256


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
