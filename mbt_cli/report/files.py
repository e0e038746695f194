"""Tables as files in five formats; the Parquet file can be read back."""

from collections.abc import Sequence
from pathlib import Path

import orjson
import polars as pl

from mbt_cli.core.tables import Column, TableData
from mbt_cli.errors import ArtifactError
from mbt_cli.report.formats import csv_text, html, latex, markdown
from mbt_cli.store.cells import FILES
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.lineage import ROWS
from mbt_cli.store.parquet import footer_metadata

_KEY = "mbt.table"
_FIRST = "main_results"


def write_tables(
    folder: Path, tables: Sequence[TableData], *, intervals: bool = True
) -> list[Path]:
    """Write every table as NAME.md, .csv, .tex, .html and .parquet.

    The Parquet file holds the unrounded numbers, and its footer the title, columns and notes.

    Args:
        folder: Folder of the files.
        tables: The tables.
        intervals: Whether the CSV and LaTeX files have the intervals and marks of significance.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    paths = []
    for table in tables:
        texts = {
            ".md": markdown(table),
            ".csv": csv_text(table, intervals=intervals),
            ".tex": latex(table, intervals=intervals),
            ".html": html(table),
        }
        for suffix, text in texts.items():
            paths.append(folder / f"{table.name}{suffix}")
            write_atomically(paths[-1], text.encode())
        facts = {
            "name": table.name,
            "title": table.title,
            "columns": list(table.columns),
            "notes": list(table.notes),
            "compared_within": list(table.compared_within),
            "column_groups": table.column_groups,
            "row_groups": list(table.row_groups),
        }
        paths.append(folder / f"{table.name}.parquet")
        with writing_to(paths[-1]):
            table.rows.write_parquet(paths[-1], metadata={_KEY: orjson.dumps(facts).decode()})
    return paths


def table_files(cell: Path) -> list[Path]:
    """The Parquet files of a report's tables: main results first, then as the manifest has them."""
    names = pl.read_parquet(cell / ROWS, columns=["table"], hive_partitioning=False)["table"]
    paths = {path.stem: path for path in sorted((cell / FILES).glob("*.parquet"))}
    order = dict.fromkeys([_FIRST, *names, *paths])
    return [paths[name] for name in order if name in paths]


def read_table(path: Path) -> TableData:
    """A table from the Parquet file that `write_tables` wrote.

    Raises:
        ArtifactError: The file is damaged or does not hold a table.
    """
    found = footer_metadata(path).get(_KEY)
    if found is None:
        raise ArtifactError(f"`{path}` is not a table written by mbt")
    facts = orjson.loads(found)
    columns = [Column(**column) for column in facts.pop("columns")]
    return TableData(columns=columns, rows=pl.read_parquet(path), **facts)
