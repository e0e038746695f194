"""A table as data, before it is Markdown, LaTeX, CSV or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

CELLS = pl.Schema(
    {
        "address": pl.String(),
        "stage": pl.String(),
        "kind": pl.String(),
        "rows": pl.Int64(),
        "failed_rows": pl.Int64(),
        "prompt_tokens": pl.Int64(),
        "completion_tokens": pl.Int64(),
        "reasoning_tokens": pl.Int64(),
        "sent": pl.Int64(),
        "retried": pl.Int64(),
        "reused": pl.Int64(),
        "failed_requests": pl.Int64(),
        "seconds": pl.Float64(),
        "notes": pl.String(),  # JSON object of what the stage told
    }
)
"""What lineages tell of finished cells, one row a cell of any kind."""


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """What tables and figures are built from.

    Args:
        summary: `rows.SUMMARY` of every scored cell with the cell's axes as string columns and
            `address`.
        scores: `rows.SCORES` likewise, lazy: it can be large.
        axes: Names of the axes in the order of addresses.
        missing: Addresses of cells that the manifest names and that are not finished.
        toy_judges: Manifest names of the judge models that are toys.
        cells: `CELLS` of every finished cell of the study.
    """

    summary: pl.DataFrame
    scores: pl.LazyFrame
    axes: Sequence[str]
    missing: Sequence[str] = ()
    toy_judges: Sequence[str] = ()
    cells: pl.DataFrame = field(default_factory=CELLS.to_frame)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a label of the row, or a number with its interval.

    For a number, `TableData.rows` has the column KEY and, where they are known, KEY_low,
    KEY_high, KEY_n, KEY_failed and KEY_tied (marked by a †, which a note explains).

    Args:
        unit: `percent` numbers are stored in [0, 1] and shown times 100.
        decimals: Digits behind the point, after that.
        best: Which end is marked as the best within `TableData.compared_within`.
    """

    key: str
    title: str
    kind: Literal["label", "number"] = "number"
    unit: str = ""
    decimals: int = 1
    best: Literal["high", "low", "none"] = "none"


@dataclass(frozen=True, slots=True)
class TableData:
    """A table: title, columns, raw rows (never rounded), and notes that stand below it.

    Args:
        name: Name of its files.
        compared_within: Label columns; the best is looked for among rows that agree in them.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: pl.DataFrame
    notes: Sequence[str] = ()
    compared_within: Sequence[str] = ()
