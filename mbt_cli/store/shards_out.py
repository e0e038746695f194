"""Rows of a cell as Parquet shards in the hub's layout, without the failed ones."""

from pathlib import Path

import polars as pl

from mbt_cli.store.disk import writing_to
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.parquet import ParquetStream
from mbt_cli.store.reading import read_rows

_ROWS_AT_ONCE = 2_000
SHARD_ROWS = 100_000


def write_shards(cell: Path, lineage: Lineage, into: Path, split: str) -> int:
    """Write `SPLIT-00000-of-0000N.parquet` files; gives the number of rows.

    Raises:
        ArtifactError: The cell is damaged, or the folder cannot be written.
    """
    rows = read_rows(cell, lineage)
    schema = rows.collect_schema()
    with writing_to(into):
        into.mkdir(parents=True, exist_ok=True)
    parts: list[Path] = []
    stream: ParquetStream | None = None
    written = in_shard = 0
    for start in range(0, lineage.rows, _ROWS_AT_ONCE):
        batch = rows.slice(start, _ROWS_AT_ONCE).collect().filter(pl.col("failure").is_null())
        if stream is None:
            parts.append(into / f"{split}-{len(parts):05d}.partial")
            stream, in_shard = ParquetStream(parts[-1], schema, {"mbt": lineage.address}), 0
        stream.append(batch)
        written, in_shard = written + batch.height, in_shard + batch.height
        if in_shard >= SHARD_ROWS:
            stream.finish()
            stream = None
    if stream is not None:
        stream.finish()
    for number, part in enumerate(parts):
        part.replace(into / f"{split}-{number:05d}-of-{len(parts):05d}.parquet")
    return written
