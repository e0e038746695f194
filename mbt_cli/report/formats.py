"""Tables as text: Markdown, CSV, LaTeX and HTML, all from the same formatted cells."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from html import escape
from itertools import groupby
from textwrap import wrap
from typing import Any, Literal

import polars as pl

from mbt_cli.core.number_text import ABSENT, number_text, rounded
from mbt_cli.core.tables import Column, TableData
from mbt_cli.report.layout import groups_of, packed, row_group_starts, side_by_side

Rank = Literal["best", "second", ""]


@dataclass(frozen=True, slots=True)
class FormattedCell:
    """One formatted cell of a table, the same in every format.

    Args:
        text: The rounded number, the label, or a dash.
        value: The value as stored.
        interval: Rounded ends of the interval; one dash for a number without an interval in a
            column of intervals.
        n: Number of questions.
        failed: Number of samples without a value.
        rank: Whether the number is the best or the second best.
        is_tied: Whether it is marked with a †, which the notes explain.
    """

    text: str
    value: Any = None
    interval: tuple[str, ...] | None = None
    n: int | None = None
    failed: int | None = None
    rank: Rank = ""
    is_tied: bool = False

    def with_interval(self, text: str = "") -> str:
        """The number, or `text` in its place, with its interval in brackets."""
        text = text or self.text
        return f"{text} [{', '.join(self.interval)}]" if self.interval else text


_INTERVAL_NOTES = ("†: ", "[—]: ")
"""How notes begin that explain the † and missing intervals."""


def formatted_rows(table: TableData) -> list[list[FormattedCell]]:
    """Every cell of a table, row by row, in the order of its columns."""
    columns = [_formatted_column(table, column) for column in table.columns]
    return [[cells[row] for cells in columns] for row in range(table.rows.height)]


def with_groups_once(
    rows: Sequence[Sequence[FormattedCell]], table: TableData
) -> list[list[FormattedCell]]:
    """The rows of a table, with the labels of a group of rows in its first row alone."""
    starts = row_group_starts(table)
    shown = []
    for row, start in zip(rows, starts, strict=True):
        blank = () if start else table.row_groups
        shown.append(
            [
                FormattedCell("") if column.key in blank else cell
                for column, cell in zip(table.columns, row, strict=True)
            ]
        )
    return shown


def group_runs(columns: Sequence[Column]) -> Iterator[tuple[str, int]]:
    """Heading of each group of neighbouring columns, and how many they are."""
    for title, run in groupby(columns, key=lambda column: column.group):
        yield title, len(list(run))


def heading(column: Column) -> str:
    """Title of a column with its unit."""
    return f"{column.title} (%)" if column.unit == "percent" else column.title


def notes_with_legend(
    table: TableData,
    *,
    underlines: bool = False,
    intervals: bool = True,
    where: str = "In brackets",
) -> list[str]:
    """A legend of the cells, then the notes of the table.

    Args:
        table: The table.
        underlines: Whether the second best is underlined.
        intervals: Whether intervals and † are shown; else the notes on † are left out.
        where: Where the intervals stand.
    """
    has_intervals = intervals and any(name.endswith("_low") for name in table.rows.columns)
    brackets = [f"{where}: 95 % intervals over questions."] if has_intervals else []
    legend = "Bold: best; underlined: second best." if underlines else "Bold: best."
    notes = [note for note in table.notes if intervals or not note.startswith(_INTERVAL_NOTES)]
    return [*brackets, *([legend] if _has_best(table) else []), *notes]


def _has_best(table: TableData) -> bool:
    return any("best" in _ranks(table, column) for column in table.columns)


def _formatted_column(table: TableData, column: Column) -> list[FormattedCell]:
    if column.kind == "label":
        labels = table.rows[column.key]
        return [FormattedCell(ABSENT if one is None else str(one), one) for one in labels]

    def stored(suffix: str) -> Sequence[Any]:
        name = f"{column.key}{suffix}"
        return table.rows[name].to_list() if name in table.rows else [None] * table.rows.height

    def text(number: float | None) -> str:
        return number_text(number, unit=column.unit, decimals=column.decimals)

    has_intervals = f"{column.key}_low" in table.rows

    def interval(
        value: Any, low: float | None, high: float | None, fixed: bool | None
    ) -> tuple[str, ...] | None:
        if value is None or not has_intervals or fixed:
            return None
        # low equals high where nothing could be estimated
        return (ABSENT,) if low is None or high is None or low == high else (text(low), text(high))

    parts = (stored(suffix) for suffix in ("", "_low", "_high", "_n", "_failed", "_tied", "_fixed"))
    return [
        FormattedCell(
            text(value),
            value,
            interval(value, low, high, fixed),
            n,
            failed,
            rank,
            bool(tied),
        )
        for value, low, high, n, failed, tied, fixed, rank in zip(
            *parts, _ranks(table, column), strict=True
        )
    ]


def _ranks(table: TableData, column: Column) -> list[Rank]:
    """Ranks of the rounded numbers, so that numbers that look equal have equal marks."""
    ranks: list[Rank] = [""] * table.rows.height
    if column.best == "none":
        return ranks
    fixed = f"{column.key}_fixed"
    for group in table.compared_groups():
        if fixed in group.columns:
            group = group.filter(~pl.col(fixed).fill_null(value=False))
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
    """The rank of a number; one of two different numbers is the best, and there is no second."""
    order = sorted({one for one in among if one is not None}, reverse=best == "high")
    if number is None or len(order) < 2:
        return ""
    if number == order[0]:
        return "best"
    return "second" if number == order[1] and len(order) > 2 else ""


_MARKDOWN_SPECIAL = re.compile(r"[\\|*`<>\[\]]|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in Markdown; an underscore inside a word has none."""


_MARKDOWN_CHARACTERS = 160
"""Width of a Markdown table up to which groups of columns stand side by side."""


def markdown(table: TableData) -> str:
    """A table as Markdown, with aligned columns, the best in bold, and the notes below.

    Groups of columns stand side by side in a table of at most 160 characters, else below each
    other.
    """
    wide = side_by_side(table)
    parts = [_markdown_lines(wide, [_with_group(column) for column in wide.columns])]
    if wide is not table and len(parts[0][0]) > _MARKDOWN_CHARACTERS:
        parts = [
            [f"**{_escape_markdown(title)}**", "", *_markdown_lines(part, part.columns)]
            for title, part in groups_of(wide)
        ]
    lines = [line for part in parts for line in ("", *part)][1:]
    notes = [f"- {_escape_markdown(note)}" for note in notes_with_legend(table)]
    title = f"### {_escape_markdown(table.title)}"
    return "\n".join([title, "", *lines, *([""] if notes else []), *notes, ""])


def _with_group(column: Column) -> Column:
    return replace(column, title=f"{column.group}: {column.title}") if column.group else column


def _markdown_lines(table: TableData, headings: Sequence[Column]) -> list[str]:
    is_label = [column.kind == "label" for column in table.columns]
    head = [_escape_markdown(heading(column)) for column in headings]
    body = [
        [_markdown_cell(cell, label) for cell, label in zip(row, is_label, strict=True)]
        for row in formatted_rows(table)
    ]
    widths = [max(3, *(len(row[k]) for row in [head, *body])) for k in range(len(head))]
    rule = [
        "-" * width if label else "-" * (width - 1) + ":"
        for width, label in zip(widths, is_label, strict=True)
    ]
    padded = (
        [
            text.ljust(width) if label else text.rjust(width)
            for text, width, label in zip(row, widths, is_label, strict=True)
        ]
        for row in (head, rule, *body)
    )
    return [f"| {' | '.join(row)} |" for row in padded]


def _markdown_cell(cell: FormattedCell, is_label: bool) -> str:
    if is_label:
        return _escape_markdown(cell.text)
    if cell.rank == "best":
        return cell.with_interval(f"**{cell.text}**")
    return cell.with_interval(f"{cell.text}{'†' if cell.is_tied else ''}")


def _escape_markdown(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\g<0>", text).replace("\n", " ")


_CSV_PARTS = ("low", "high", "n", "failed")
_CSV_BOUNDS = ("if_wrong", "if_right")


def csv_text(table: TableData, *, intervals: bool = True) -> str:
    """A table as CSV: rounded numbers, each followed by what is known of it.

    Data to read back: a row for each cell and mean, with the benchmark in a column.

    That is its low, high, n and failed, if_wrong and if_right where samples are missing, and mark:
    `best`, `second`, `†` or `second †`. Without `intervals`, low, high and mark are left out.
    """
    left_out = () if intervals else ("low", "high")
    parts = {
        column.key: [
            part
            for part in (*_CSV_PARTS, *_CSV_BOUNDS)
            if f"{column.key}_{part}" in table.rows.columns
            and column.kind == "number"
            and part not in left_out
        ]
        + (["mark"] if intervals and column.kind == "number" and column.best != "none" else [])
        for column in table.columns
    }
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        name for key, own in parts.items() for name in (key, *(f"{key}_{part}" for part in own))
    )
    for stored, row in zip(table.rows.iter_rows(named=True), formatted_rows(table), strict=True):
        values: list[object] = []
        for column, cell in zip(table.columns, row, strict=True):
            low, high = cell.interval if cell.interval and len(cell.interval) == 2 else ("", "")
            found = {"low": low, "high": high, "n": cell.n, "failed": cell.failed}
            found["mark"] = f"{cell.rank} {'†' if cell.is_tied else ''}".strip()
            for bound in _CSV_BOUNDS:
                number = stored.get(f"{column.key}_{bound}")
                text = number_text(number, unit=column.unit, decimals=column.decimals)
                found[bound] = "" if text == ABSENT else text
            values += ["" if cell.text == ABSENT else cell.text]
            values += [found[part] for part in parts[column.key]]
        writer.writerow(values)
    return file.getvalue()


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
_STANDALONE_START = r"""\makeatletter
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
_STANDALONE_END = r"""\ifdefined\mbttableends\expandafter\mbttableends\fi"""


_LATEX_MILLIMETRES = 170.0
"""Width of a table over both columns of a page, in which groups of columns stand side by side."""
_LATEX_FLOAT_MILLIMETRES = 180.0
"""Height of a float, with the notes."""
_MILLIMETRES = {
    "small": 1.6,
    "scriptsize": 1.3,
    "between": 2.8,
    "row": 4.0,
    "row with interval": 8.3,
    "heading": 18.0,
    "line of notes": 3.6,
}
"""Width of a character in two sizes, space between columns, height of rows and headings."""
_NOTE_CHARACTERS = 150


def latex(table: TableData, *, intervals: bool = True) -> str:
    r"""A table as a LaTeX document that another document can also `\input`.

    Intervals stand in small type below the numbers; without them, the † is left out too. Groups of
    columns have a heading over all their columns; those that do not fit beside each other stand
    below each other, in further floats of the same number where a page is full.
    """
    wide = side_by_side(table)
    parts = packed(wide, _latex_widths(wide, intervals=intervals), _LATEX_MILLIMETRES)
    row = _MILLIMETRES["row with interval" if intervals else "row"]
    height = row * wide.rows.height + _MILLIMETRES["heading"]
    shown = notes_with_legend(table, underlines=True, intervals=intervals, where="Below numbers")
    notes = r"\par ".join(map(escape_latex, shown))
    below = sum(-(-len(note) // _NOTE_CHARACTERS) for note in shown) * _MILLIMETRES["line of notes"]
    at_once = max(1, int((_LATEX_FLOAT_MILLIMETRES - below) / height))
    lines = [_STANDALONE_START]
    for start in range(0, len(parts), at_once):
        is_first, is_last = start == 0, start + at_once >= len(parts)
        title = f"{table.title}{'' if is_first else ', continued'}"
        blocks = [
            line
            for part in parts[start : start + at_once]
            for line in (r"\par\medskip", *_tabular(part, intervals=intervals))
        ]
        lines += [
            r"\begin{table}[htbp]",
            r"\centering\small\setlength{\tabcolsep}{4pt}\setlength{\belowcaptionskip}{4pt}",
            r"\sisetup{detect-weight=true}",
            *([] if is_first else [r"\addtocounter{table}{-1}"]),
            rf"\caption{{{escape_latex(title)}}}",
            *([rf"\label{{tab:{table.name}}}"] if is_first else []),
            *blocks[1:],
            *([_latex_notes(notes)] if is_last else []),
            r"\end{table}",
        ]
    return "\n".join([*lines, _STANDALONE_END]) + "\n"


def _latex_notes(notes: str) -> str:
    return rf"\par\smallskip\begin{{minipage}}{{\linewidth}}\footnotesize {notes}\end{{minipage}}"


def _latex_widths(table: TableData, *, intervals: bool) -> dict[str, float]:
    """About how many millimetres each column takes."""
    rows = formatted_rows(table)
    widths = {}
    for place, column in enumerate(table.columns):
        texts = [row[place].text for row in rows] + wrap(heading(column), _HEADING_CHARACTERS)
        width = max(map(len, texts)) * _MILLIMETRES["small"]
        ends = [", ".join(row[place].interval or ()) for row in rows if intervals]
        below = (max(map(len, ends), default=0) + 2) * _MILLIMETRES["scriptsize"]
        widths[column.key] = max(width, below if any(ends) else 0.0) + _MILLIMETRES["between"]
    return widths


def _tabular(table: TableData, *, intervals: bool) -> list[str]:
    rows = formatted_rows(table)
    if not intervals:
        rows = [[replace(cell, is_tied=False) for cell in row] for row in rows]
    digits = [
        _Digits.of([row[k] for row in rows]) if column.kind == "number" else None
        for k, column in enumerate(table.columns)
    ]
    types = " ".join("l" if one is None else one.column_type() for one in digits)
    head = " & ".join(_latex_heading(column) for column in table.columns)
    starts = row_group_starts(table)
    groups = table.rows.select(table.compared_within).rows() if table.compared_within else []
    body: list[str] = []
    for number, row in enumerate(with_groups_once(rows, table)):
        if number and starts[number]:
            body.append(r"\midrule")
        elif number and groups and groups[number] != groups[number - 1]:
            body.append(r"\addlinespace")
        cells = [
            escape_latex(cell.text) if one is None else _latex_number(cell, one)
            for cell, one in zip(row, digits, strict=True)
        ]
        body.append(rf"{' & '.join(cells)} \\")
        if intervals and any(cell.interval for cell in row):
            body.append(rf"{' & '.join(map(_latex_interval, row))} \\[2pt]")
    return [
        rf"\begin{{tabular}}{{@{{}}{types}@{{}}}}",
        r"\toprule",
        *_latex_groups(table.columns),
        rf"{head} \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _latex_groups(columns: Sequence[Column]) -> list[str]:
    """The headings of groups, each over all its columns, with a rule below."""
    runs = list(group_runs(columns))
    if not any(title for title, _ in runs):
        return []
    cells, rules, first = [], [], 1
    for title, width in runs:
        if title:
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(title)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        else:
            cells += [""] * width
        first += width
    return [rf"{' & '.join(cells)} \\", "".join(rules)]


def escape_latex(text: str) -> str:
    r"""Text without any character that has a meaning in TeX.

    Example:
        >>> escape_latex("a_b & 50% $x$ #1 ~ ^")
        'a\\_b \\& 50\\% \\$x\\$ \\#1 \\textasciitilde{} \\textasciicircum{}'
    """
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


@dataclass(frozen=True, slots=True)
class _Digits:
    """The column format of siunitx: the maximum number of digits on either side of the point."""

    before: int
    after: int
    is_signed: bool
    has_dagger: bool

    @classmethod
    def of(cls, cells: Sequence[FormattedCell]) -> "_Digits":
        numbers = [cell.text for cell in cells if cell.text != ABSENT]
        return cls(
            max((len(text.lstrip("-").partition(".")[0]) for text in numbers), default=1),
            max((len(text.partition(".")[2]) for text in numbers), default=0),
            any(text.startswith("-") for text in numbers),
            any(cell.is_tied for cell in cells),
        )

    def column_type(self) -> str:
        sign = "-" if self.is_signed else ""
        dagger = f",table-space-text-post={_DAGGER}" if self.has_dagger else ""
        return f"S[table-format={sign}{self.before}.{self.after}{dagger}]"


def _latex_heading(column: Column) -> str:
    """A heading of several short lines, aligned at the bottom of the row."""
    lines = r"\\".join(escape_latex(line) for line in wrap(heading(column), _HEADING_CHARACTERS))
    place = "l" if column.kind == "label" else "c"
    return rf"{{\begin{{tabular}}[b]{{@{{}}{place}@{{}}}}{lines}\end{{tabular}}}}"


def _latex_number(cell: FormattedCell, digits: _Digits) -> str:
    if cell.text == ABSENT:
        return "{---}"
    dagger = _DAGGER if cell.is_tied else ""
    if cell.rank == "best":
        return rf"\bfseries {cell.text} {dagger}".rstrip()
    if cell.rank == "second":
        return _latex_underlined(cell, digits)
    return f"{cell.text} {dagger}".rstrip()


def _latex_interval(cell: FormattedCell) -> str:
    return rf"{{\scriptsize [{escape_latex(', '.join(cell.interval))}]}}" if cell.interval else ""


def _latex_underlined(cell: FormattedCell, digits: _Digits) -> str:
    """An underlined number, padded to the width of its column, as siunitx cannot align it."""
    sign, number = ("$-$" if cell.text.startswith("-") else ""), cell.text.lstrip("-")
    missing = digits.before - len(number.partition(".")[0])
    left = "0" * missing + ("$-$" if digits.is_signed and not sign else "")
    padding = rf"\phantom{{{left}}}" if left else ""
    dagger = _DAGGER[1:-1]
    right = dagger if cell.is_tied else rf"\phantom{{{dagger}}}" if digits.has_dagger else ""
    return rf"{{{padding}\underline{{{sign}{number}}}{right}}}"


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem}"
    "table{border-collapse:collapse}caption{font-weight:600;text-align:left;padding:.5rem 0}"
    "th,td{padding:.25rem .75rem;border-bottom:1px solid #8884}"
    "td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}"
    "td small{opacity:.75}th.group{text-align:center}tr.start>*{border-top:2px solid #8888}"
)


def html(table: TableData) -> str:
    """A table as an HTML document; every text is escaped, unrounded numbers are in data-value."""
    wide = side_by_side(table)
    head = "".join(
        f'<th scope="col" class="{column.kind}">{escape(heading(column))}</th>'
        for column in wide.columns
    )
    over = "".join(
        f'<th scope="colgroup" class="group" colspan="{width}">{escape(title)}</th>'
        if title
        else f'<td colspan="{width}"></td>'
        for title, width in group_runs(wide.columns)
    )
    groups = f"<tr>{over}</tr>" if any(column.group for column in wide.columns) else ""
    kinds = [column.kind for column in wide.columns]
    opening = {True: '<tr class="start">', False: "<tr>"}
    rows = zip(formatted_rows(wide), row_group_starts(wide), strict=True)
    body = "\n".join(
        f"{opening[is_start]}{''.join(map(_html_cell, row, kinds))}</tr>" for row, is_start in rows
    )
    notes = "".join(
        f"<li>{escape(note)}</li>" for note in notes_with_legend(table, underlines=True)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{escape(table.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f'<table id="{escape(table.name)}">\n<caption>{escape(table.title)}</caption>\n'
        f"<thead>{groups}<tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
        + "</body>\n</html>\n"
    )


def _html_cell(cell: FormattedCell, kind: str) -> str:
    if kind == "label":
        return f'<th scope="row" class="label">{escape(cell.text)}</th>'
    tag = {"best": "b", "second": "u"}.get(cell.rank)
    text = f"<{tag}>{cell.text}</{tag}>" if tag else cell.text
    dagger = '<sup title="not significant: see the notes below">†</sup>' if cell.is_tied else ""
    interval = f" <small>[{', '.join(cell.interval)}]</small>" if cell.interval else ""
    counts = [
        f"{name} {count}"
        for name, count in (("n", cell.n), ("failed", cell.failed))
        if count is not None
    ]
    title = f' title="{", ".join(counts)}"' if counts else ""
    value = "" if cell.value is None else f' data-value="{cell.value}"'
    return f'<td class="number"{value}{title}>{text}{dagger}{interval}</td>'
