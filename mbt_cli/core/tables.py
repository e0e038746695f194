"""A table as data, before it becomes Markdown, CSV, LaTeX or HTML."""

from collections.abc import Iterator, Mapping, Sequence
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
        "notes": pl.String(),  # the stage's notes, a JSON object
        "published": pl.List(pl.Int64()),  # steps whose checkpoints a training has published
    }
)
"""Facts from the lineages of finished cells, one row per cell of any kind."""

SPENDING = pl.Schema(
    {
        "address": pl.String(),
        "model": pl.String(),
        "requests": pl.Int64(),
        "input": pl.Int64(),
        "cached": pl.Int64(),
        "output": pl.Int64(),
        "money": pl.Float64(),  # null without a price
        "at_most": pl.Float64(),  # with requests whose end is not known
    }
)
"""What the requests of each cell to each model have used and cost, finished or not."""


STAGE = "stage"
"""An axis of `ReportInputs` with the score stage, where the others do not tell cells apart."""


def beside_benchmarks(axes: Mapping[str, str]) -> Mapping[str, str]:
    """The axes of a harness' cell in a report with benchmarks: the harness is one of them.

    Example:
        >>> beside_benchmarks({"model": "m", "harness": "olmes"})
        {'benchmark': 'olmes', 'model': 'm'}
    """
    if "harness" not in axes:
        return axes
    others = {axis: value for axis, value in axes.items() if axis != "harness"}
    return {"benchmark": axes["harness"], **others}


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """The data that tables and figures are built from.

    Args:
        summary: `rows.SUMMARY` of every scored cell, with `address` and the cell's axes as string
            columns.
        scores: `rows.SCORES` in the same form, lazy because it can be large; `cluster` is null or
            missing where questions are independent.
        axes: Names of the axes, in the order of addresses.
        missing: Addresses of cells in the manifest that are not finished.
        missing_seeds: Number of unfinished cells of rows that have other seeds.
        toy_judges: Manifest names of the judge models that are toys.
        cells: `CELLS` of every finished cell of the study.
        related_judges: Sentences about judges of replies of their own kind.
        spending: `SPENDING` of the study.
        currency: Currency of its money.
    """

    summary: pl.DataFrame
    scores: pl.LazyFrame
    axes: Sequence[str]
    missing: Sequence[str] = ()
    missing_seeds: int = 0
    toy_judges: Sequence[str] = ()
    cells: pl.DataFrame = field(default_factory=CELLS.to_frame)
    related_judges: Sequence[str] = ()
    spending: pl.DataFrame = field(default_factory=SPENDING.to_frame)
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a label of the row, or a number with its interval.

    For a number, `TableData.rows` has the column KEY and, where they are known, KEY_low,
    KEY_high, KEY_n, KEY_failed, KEY_tied (shown as †, which a note explains) and KEY_fixed (known
    by definition: it has no interval and is not compared).

    Args:
        unit: `percent` numbers are stored in [0, 1] and shown multiplied by 100.
        decimals: Digits after the decimal point as shown.
        best: Whether the highest or the lowest number is marked as the best.
        group: Heading that it shares with the columns beside it.
    """

    key: str
    title: str
    kind: Literal["label", "number"] = "number"
    unit: str = ""
    decimals: int = 1
    best: Literal["high", "low", "none"] = "none"
    group: str = ""


COUNTS = ("n", "failed", "seeds")
"""Columns of counts, which tell little where all rows have the same."""
IS_MEAN = "is_mean"
"""Column of `TableData.rows`: whether the row is a mean over benchmarks instead of a cell."""


@dataclass(frozen=True, slots=True)
class TableData:
    """A table: title, columns, unrounded rows, and the notes below it.

    Args:
        name: Name of its files.
        compared_within: Label columns; numbers are compared among rows with equal labels.
        column_groups: Label column; rows that differ in it alone are shown side by side, as a
            group of columns for each of its values.
        row_groups: Label columns; rows with equal labels are shown as a group.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: pl.DataFrame
    notes: Sequence[str] = ()
    compared_within: Sequence[str] = ()
    column_groups: str = ""
    row_groups: Sequence[str] = ()

    @property
    def labels(self) -> list[str]:
        """Keys of the label columns."""
        return [column.key for column in self.columns if column.kind == "label"]

    def compared_groups(self) -> Iterator[pl.DataFrame]:
        """Groups of rows that are compared with each other; `row` is the row's number."""
        rows = self.rows.with_row_index("row")
        if not self.compared_within:
            yield rows
            return
        yield from rows.partition_by(*self.compared_within, maintain_order=True)
