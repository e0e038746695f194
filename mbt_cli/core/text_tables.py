"""Tables as Markdown and CSV."""

import csv
import io
import re
from collections.abc import Sequence

from mbt_cli.core.number_text import ABSENT
from mbt_cli.core.shown_tables import ShownCell, heading, reading_notes, shown_rows
from mbt_cli.core.tables import Column, TableData

_SPECIAL = re.compile(r"[\\|*`<>\[\]]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown reads as more than text; an underscore inside a word is harmless."""


def markdown(table: TableData) -> str:
    """A table as Markdown: aligned in plain text too, best bold, notes below."""
    head = [_escaped(heading(column)) for column in table.columns]
    body = [
        [_markdown_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        for row in shown_rows(table)
    ]
    widths = [max(3, *(len(row[i]) for row in [head, *body])) for i in range(len(head))]
    lines = [_line(head, widths, table.columns), _rule(widths, table.columns)]
    lines += [_line(row, widths, table.columns) for row in body]
    notes = [f"- {_escaped(note)}" for note in reading_notes(table)]
    return "\n".join(
        [f"### {_escaped(table.title)}", "", *lines, *([""] if notes else []), *notes, ""]
    )


def csv_text(table: TableData) -> str:
    """A table as CSV: rounded as everywhere, each number with low, high, n and failed beside it."""
    parts = ("low", "high", "n", "failed")
    names: list[str] = []
    for column in table.columns:
        names.append(column.key)
        names += [f"{column.key}_{part}" for part in _parts_of(table, column, parts)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in shown_rows(table):
        values: list[str] = []
        for cell, column in zip(row, table.columns, strict=True):
            values.append(_plain(cell.text))
            told = dict(zip(parts, _beside(cell), strict=True))
            values += [told[part] for part in _parts_of(table, column, parts)]
        writer.writerow(values)
    return file.getvalue()


def _parts_of(table: TableData, column: Column, parts: Sequence[str]) -> list[str]:
    if column.kind == "label":
        return []
    return [part for part in parts if f"{column.key}_{part}" in table.rows.columns]


def _beside(cell: ShownCell) -> tuple[str, str, str, str]:
    low, high = cell.interval or ("", "")
    n, failed = ("" if count is None else str(count) for count in (cell.n, cell.failed))
    return low, high, n, failed


def _plain(text: str) -> str:
    return "" if text == ABSENT else text


def _markdown_cell(cell: ShownCell, column: Column) -> str:
    if column.kind == "label":
        return _escaped(cell.text)
    mark = "†" if cell.is_tied else ""
    if cell.rank == "best":
        return cell.with_interval().replace(cell.text, f"**{cell.text}**", 1)
    return cell.with_interval().replace(cell.text, f"{cell.text}{mark}", 1)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text).replace("\n", " ")


def _line(texts: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    padded = [
        text.ljust(width) if column.kind == "label" else text.rjust(width)
        for text, width, column in zip(texts, widths, columns, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _rule(widths: Sequence[int], columns: Sequence[Column]) -> str:
    dashes = [
        "-" * width if column.kind == "label" else "-" * (width - 1) + ":"
        for width, column in zip(widths, columns, strict=True)
    ]
    return f"| {' | '.join(dashes)} |"
