r"""Tables as LaTeX: booktabs rules, siunitx columns, best bold, second underlined.

The text compiles alone, and can be `\input` in a paper that loads booktabs and siunitx: its
preamble is skipped where a document class has been read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from mbt_cli.core.number_text import ABSENT
from mbt_cli.core.shown_tables import ShownCell, has_ranks, heading, shown_rows
from mbt_cli.core.tables import Column, TableData

_HEADING_CHARACTERS = 10
_DAGGER = r"{$^{\dagger}$}"
_SPECIAL = {
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
    return "".join(_SPECIAL.get(character, character) for character in text)


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
