"""Tables as HTML: plain, escaped, with the raw numbers as data for sorting."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from mbt_cli.core.number_text import ABSENT
from mbt_cli.core.tables import Column, TableData
from mbt_cli.report.shown import ShownCell, has_ranks, heading, reading_notes, shown_rows

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


_HEADING_CHARACTERS = 10
_DAGGER = r"{$^{\dagger}$}"
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "†": r"$\dagger$",
    "—": "---",
    "\n": " ",
}
_ALONE = r"""\makeatletter
\ifx\documentclass\@twoclasseserror\else
\documentclass{article}
\usepackage[margin=1cm,landscape]{geometry}
\usepackage{booktabs}
\usepackage{siunitx}
\pagestyle{empty}
\begin{document}
\gdef\mbttableends{\end{document}}
\fi
\makeatother"""
_ENDS = r"""\ifdefined\mbttableends\expandafter\mbttableends\fi"""


@dataclass(frozen=True, slots=True)
class _Digits:
    """Widest number of a column: digits before and behind the point, and whether one is below 0."""

    before: int
    behind: int
    is_signed: bool
    has_dagger: bool

    def column_type(self) -> str:
        sign = "-" if self.is_signed else ""
        after = f",table-space-text-post={_DAGGER}" if self.has_dagger else ""
        behind = f".{self.behind}" if self.behind else ".0"
        return f"S[table-format={sign}{self.before}{behind}{after}]"


def latex(table: TableData) -> str:
    """A table as a LaTeX document that can also be read into another one."""
    rows = shown_rows(table)
    digits = [
        _digits([row[i] for row in rows]) if column.kind == "number" else None
        for i, column in enumerate(table.columns)
    ]
    types = " ".join("l" if one is None else one.column_type() for one in digits)
    head = " & ".join(_heading(column) for column in table.columns)
    body = _body(table, rows, digits)
    notes = r"\par ".join(escaped(note) for note in _notes(table))
    lines = [
        _ALONE,
        r"\begin{table}[htbp]",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        r"\sisetup{detect-weight=true}",
        rf"\caption{{{escaped(table.title)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{@{{}}{types}@{{}}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        rf"\par\smallskip\begin{{minipage}}{{\linewidth}}\footnotesize {notes}\end{{minipage}}",
        r"\end{table}",
        _ENDS,
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    r"""Text in which nothing means anything to TeX.

    Example:
        >>> escaped("a_b & 50% $x$ #1 ~ ^")
        'a\\_b \\& 50\\% \\$x\\$ \\#1 \\textasciitilde{} \\textasciicircum{}'
    """
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _heading(column: Column) -> str:
    """A heading over several lines, at the foot of the row."""
    lines = r"\\".join(escaped(line) for line in wrap(heading(column), _HEADING_CHARACTERS))
    place = "l" if column.kind == "label" else "c"
    return rf"{{\begin{{tabular}}[b]{{@{{}}{place}@{{}}}}{lines}\end{{tabular}}}}"


def _notes(table: TableData) -> list[str]:
    marks = ["Bold: best; underlined: second best."] if has_ranks(table) else []
    return [*marks, *table.notes]


def _body(
    table: TableData, rows: Sequence[Sequence[ShownCell]], digits: Sequence[_Digits | None]
) -> list[str]:
    """Table rows, with a thin rule where another group of compared rows begins."""
    groups = table.rows.select(table.compared_within).rows() if table.compared_within else []
    lines: list[str] = []
    for number, row in enumerate(rows):
        if number and groups and groups[number] != groups[number - 1]:
            lines.append(r"\addlinespace")
        cells = [
            escaped(cell.text) if one is None else _number(cell, one)
            for cell, one in zip(row, digits, strict=True)
        ]
        lines.append(rf"{' & '.join(cells)} \\")
    return lines


def _digits(cells: Sequence[ShownCell]) -> _Digits:
    numbers = [cell.text for cell in cells if cell.text != ABSENT]
    before = [len(text.lstrip("-").partition(".")[0]) for text in numbers]
    behind = [len(text.partition(".")[2]) for text in numbers]
    return _Digits(
        max(before, default=1),
        max(behind, default=0),
        any(text.startswith("-") for text in numbers),
        any(cell.is_tied for cell in cells),
    )


def _number(cell: ShownCell, digits: _Digits) -> str:
    if cell.text == ABSENT:
        return "{---}"
    dagger = _DAGGER if cell.is_tied else ""
    if cell.rank == "best":
        return rf"\bfseries {cell.text} {dagger}".rstrip()
    if cell.rank == "second":
        return _underlined(cell, digits)
    return f"{cell.text} {dagger}".rstrip()


def _underlined(cell: ShownCell, digits: _Digits) -> str:
    """An underlined number, which siunitx cannot align, padded to the width of its column."""
    sign, whole = ("$-$" if cell.text.startswith("-") else ""), cell.text.lstrip("-")
    missing = digits.before - len(whole.partition(".")[0])
    left = "0" * missing + ("$-$" if digits.is_signed and not sign else "")
    padding = rf"\phantom{{{left}}}" if left else ""
    right = _DAGGER[1:-1] if cell.is_tied else ""
    if digits.has_dagger and not cell.is_tied:
        right = rf"\phantom{{{_DAGGER[1:-1]}}}"
    return rf"{{{padding}\underline{{{sign}{whole}}}{right}}}"


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
        _label(cell) if column.kind == "label" else _html_number(cell, value)
        for cell, value, column in zip(cells, raw, columns, strict=True)
    )


def _label(cell: ShownCell) -> str:
    return f'<th scope="row" class="label">{escape(cell.text)}</th>'


def _html_number(cell: ShownCell, value: object) -> str:
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
