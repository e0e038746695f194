"""A table as it is shown, whatever the format: texts, ranks and marks, each decided once."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import polars as pl

from mbt_cli.core.number_text import ABSENT, number_text, rounded
from mbt_cli.core.tables import Column, TableData
from mbt_cli.report.rows import compared_groups

Rank = Literal["best", "second", ""]


@dataclass(frozen=True, slots=True)
class ShownCell:
    """One cell of a table, ready to be set.

    Args:
        text: The rounded number, the label, or a dash.
        interval: Rounded ends, where there is an interval.
        n: Questions behind the number.
        failed: Samples without a value.
        rank: Whether it is the best or second best as shown.
        is_tied: Whether it bears a †; the notes say what it was compared with.
    """

    text: str
    interval: tuple[str, str] | None = None
    n: int | None = None
    failed: int | None = None
    rank: Rank = ""
    is_tied: bool = False

    def with_interval(self) -> str:
        """The number with its interval in brackets."""
        return f"{self.text} [{', '.join(self.interval)}]" if self.interval else self.text


def heading(column: Column) -> str:
    """Title of a column with its unit."""
    return f"{column.title} (%)" if column.unit == "percent" else column.title


def shown_rows(table: TableData) -> list[list[ShownCell]]:
    """Every cell of a table as it is shown, row by row, in the order of its columns."""
    columns = [_shown_column(table, column) for column in table.columns]
    return [[cells[row] for cells in columns] for row in range(table.rows.height)]


def has_ranks(table: TableData) -> bool:
    """Whether a best is marked in any column, which equal numbers have none of."""
    return any("best" in _ranks(table, column) for column in table.columns)


def reading_notes(table: TableData, *, underlines: bool = False) -> list[str]:
    """Notes for formats that show intervals: how to read a cell, then the table's own."""
    has_intervals = any(name.endswith("_low") for name in table.rows.columns)
    brackets = ["In brackets: 95 % intervals over questions."] if has_intervals else []
    told = "Bold: the best; underlined: the second." if underlines else "Bold: the best."
    marks = [told] if has_ranks(table) else []
    return [*brackets, *marks, *table.notes]


def _shown_column(table: TableData, column: Column) -> list[ShownCell]:
    if column.kind == "label":
        return [ShownCell(ABSENT if v is None else str(v)) for v in table.rows[column.key]]
    ranks = _ranks(table, column)
    parts = [
        _part(table.rows, f"{column.key}{part}")
        for part in ("", "_low", "_high", "_n", "_failed", "_tied")
    ]
    return [
        _shown_number(column, values, rank)
        for values, rank in zip(zip(*parts, strict=True), ranks, strict=True)
    ]


def _part(rows: pl.DataFrame, name: str) -> Sequence[Any]:
    return rows[name].to_list() if name in rows.columns else [None] * rows.height


def _shown_number(column: Column, values: Sequence[Any], rank: Rank) -> ShownCell:
    value, low, high, n, failed, tied = values

    def text(number: float | None) -> str:
        return number_text(number, unit=column.unit, decimals=column.decimals)

    interval = None if low is None or high is None else (text(low), text(high))
    return ShownCell(text(value), interval, n, failed, rank, bool(tied))


def _ranks(table: TableData, column: Column) -> list[Rank]:
    """Ranks by the numbers as shown, so that equal texts never bear different marks."""
    ranks: list[Rank] = [""] * table.rows.height
    if column.best == "none":
        return ranks
    for group in compared_groups(table):
        numbers = [
            rounded(value, unit=column.unit, decimals=column.decimals)
            for value in group[column.key]
        ]
        for row, number in zip(group["row"], numbers, strict=True):
            ranks[row] = _rank(number, numbers, column.best)
    return ranks


def _rank(
    number: Decimal | None, among: Sequence[Decimal | None], best: Literal["high", "low"]
) -> Rank:
    order = sorted({one for one in among if one is not None}, reverse=best == "high")
    if number is None or len(order) < 2:
        return ""  # nothing to be better than
    if number == order[0]:
        return "best"
    return "second" if number == order[1] and len(order) > 2 else ""
