"""Tables as HTML: plain, escaped, with the raw numbers as data for sorting."""

from collections.abc import Sequence
from html import escape

from mbt_cli.core.shown_tables import ShownCell, heading, reading_notes, shown_rows
from mbt_cli.core.tables import Column, TableData

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem}"
    "table{border-collapse:collapse}caption{font-weight:600;text-align:left;padding:.5rem 0}"
    "th,td{padding:.25rem .75rem;border-bottom:1px solid #8884}"
    "td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}"
    "td small{opacity:.75}"
)


def html_table(table: TableData) -> str:
    """A `<table>` and its notes; every text is escaped, so names that look like tags stay text."""
    head = "".join(
        f'<th scope="col" class="{column.kind}">{escape(heading(column))}</th>'
        for column in table.columns
    )
    raw = [table.rows[column.key].to_list() for column in table.columns]
    body = "\n".join(
        f"<tr>{_row(row, [values[number] for values in raw], table.columns)}</tr>"
        for number, row in enumerate(shown_rows(table))
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in reading_notes(table, underlines=True))
    return (
        f'<table id="{escape(table.name)}">\n<caption>{escape(table.title)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
    )


def html_document(table: TableData) -> str:
    """The same as a page of its own."""
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{escape(table.title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{html_table(table)}</body>\n</html>\n"
    )


def _row(cells: Sequence[ShownCell], raw: Sequence[object], columns: Sequence[Column]) -> str:
    return "".join(
        _label(cell) if column.kind == "label" else _number(cell, value)
        for cell, value, column in zip(cells, raw, columns, strict=True)
    )


def _label(cell: ShownCell) -> str:
    return f'<th scope="row" class="label">{escape(cell.text)}</th>'


def _number(cell: ShownCell, value: object) -> str:
    text = {"best": f"<b>{cell.text}</b>", "second": f"<u>{cell.text}</u>"}.get(
        cell.rank, cell.text
    )
    tied = '<sup title="may be chance: see the notes below">†</sup>' if cell.is_tied else ""
    interval = f" <small>[{', '.join(cell.interval)}]</small>" if cell.interval else ""
    counts = [
        f"{name} {count}"
        for name, count in (("n", cell.n), ("failed", cell.failed))
        if count is not None
    ]
    title = f' title="{", ".join(counts)}"' if counts else ""
    sort = "" if value is None else f' data-value="{value}"'
    return f'<td class="number"{sort}{title}>{text}{tied}{interval}</td>'
