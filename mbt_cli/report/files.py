"""Tables as files, each in five formats, and back from the one that keeps everything."""

from collections.abc import Sequence
from pathlib import Path

import orjson
import polars as pl

from mbt_cli.core.tables import CELLS, Column, TableData
from mbt_cli.errors import ArtifactError
from mbt_cli.report.formats import csv_text, html_document, latex, markdown
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.parquet import footer_metadata
from mbt_cli.store.reading import finished_cells

_KEY = "mbt.table"


def write_tables(folder: Path, tables: Sequence[TableData]) -> list[Path]:
    """Write every table as NAME.md, .csv, .tex, .html and .parquet.

    The Parquet file holds the unrounded numbers, and in its footer the title, columns and notes.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    paths = []
    for table in tables:
        for suffix, render in _RENDERERS.items():
            path = folder / f"{table.name}{suffix}"
            write_atomically(path, render(table).encode())
            paths.append(path)
        paths.append(_write_parquet(folder / f"{table.name}.parquet", table))
    return paths


def read_table(path: Path) -> TableData:
    """A table from the Parquet file that `write_tables` wrote.

    Raises:
        ArtifactError: The file is damaged or no table.
    """
    found = footer_metadata(path).get(_KEY)
    if found is None:
        raise ArtifactError(f"`{path}` is no table that mbt wrote")
    facts = orjson.loads(found)
    columns = [Column(**column) for column in facts.pop("columns")]
    return TableData(columns=columns, rows=pl.read_parquet(path), **facts)


def study_cells(study_folder: Path) -> pl.DataFrame:
    """`tables.CELLS` of every finished cell below `runs/<study>`, stages in the order they ran.

    Raises:
        ArtifactError: A lineage is damaged or of an unknown layout.
    """
    lineages = [lineage for _, lineage in finished_cells(study_folder)]
    lineages.sort(key=lambda lineage: (lineage.started_at, lineage.address))
    return pl.DataFrame([_facts(lineage) for lineage in lineages], schema=CELLS)


def _facts(lineage: Lineage) -> dict[str, object]:
    return {
        "address": lineage.address,
        "stage": lineage.stage,
        "kind": lineage.kind,
        "rows": lineage.rows,
        "failed_rows": lineage.failed_rows,
        "prompt_tokens": lineage.tokens.prompt,
        "completion_tokens": lineage.tokens.completion,
        "reasoning_tokens": lineage.tokens.reasoning,
        "sent": lineage.requests.sent,
        "retried": lineage.requests.retried,
        "reused": lineage.requests.reused,
        "failed_requests": lineage.requests.failed,
        "seconds": lineage.seconds,
        "notes": orjson.dumps(lineage.notes).decode(),
    }


def _write_parquet(path: Path, table: TableData) -> Path:
    facts = {
        "name": table.name,
        "title": table.title,
        "columns": list(table.columns),
        "notes": list(table.notes),
        "compared_within": list(table.compared_within),
    }
    metadata = {_KEY: orjson.dumps(facts).decode()}
    with writing_to(path):
        table.rows.write_parquet(path, metadata=metadata)
    return path


_RENDERERS = {".md": markdown, ".csv": csv_text, ".tex": latex, ".html": html_document}
