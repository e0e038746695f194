"""A table as data, before it is Markdown, LaTeX, CSV or HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import polars as pl


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """What tables and figures are built from.

    Args:
        summary: `rows.SUMMARY` of every scored cell with the cell's axes as string columns and
            `address`.
        scores: `rows.SCORES` likewise, lazy: it can be large.
        axes: Names of the axes in the order of addresses.
        missing: Addresses of cells that the manifest names and that are not finished.
        models: Manifest name of a model to what it is, such as `scripted` or `embedded`.
    """

    summary: pl.DataFrame
    scores: pl.LazyFrame
    axes: Sequence[str]
    missing: Sequence[str] = ()
    models: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a label of the row, or a number with its interval.

    For a number, `TableData.rows` has the columns KEY, KEY_low, KEY_high, KEY_n, KEY_failed.
    """

    key: str
    title: str
    kind: Literal["label", "number"] = "number"
    unit: str = ""
    decimals: int = 1
    best: Literal["high", "low", "none"] = "none"


@dataclass(frozen=True, slots=True)
class TableData:
    """A table: title, columns, raw rows (never rounded), and notes that stand below it."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: pl.DataFrame
    notes: Sequence[str] = ()
