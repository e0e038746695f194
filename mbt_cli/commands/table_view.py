"""A table on the terminal: as it stands where there is room, else turned on its side or folded."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mbt_cli.core.shown_tables import ShownCell, heading, reading_notes, shown_rows
from mbt_cli.core.tables import Column, TableData

_TURNED_ROWS = 6
_NO_LIMIT = 10_000
_HEADING_CHARACTERS = 12
_LABEL_CHARACTERS = 36
_TURNED_CHARACTERS = 12


class StoredTable:
    """A table that fits itself to the terminal.

    Numbers bear their intervals and their †, the best is bold. Where there is no room, headings
    and addresses take several lines; a number is never cut.
    """

    def __init__(self, table: TableData) -> None:
        self._table = table
        self._rows = shown_rows(table)
        self._has_intervals = any(cell.interval for row in self._rows for cell in row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=_NO_LIMIT)

        def fits(table: Table) -> bool:
            return Measurement.get(console, unlimited, table).maximum <= options.max_width

        if fits(upright := self._upright()):
            yield upright
        elif not 0 < len(self._rows) <= _TURNED_ROWS:
            yield self._folded()
        else:
            yield turned if fits(turned := self._turned(" ")) else self._turned("\n")
        for note in reading_notes(self._table):
            yield Text(note, style="dim")

    def _upright(self) -> Table:
        table = self._empty(lines=True)
        for column in self._table.columns:
            table.add_column(heading(column), justify=_justify(column), no_wrap=True)
        for row in self._rows:
            table.add_row(*(_cell(cell, "\n") for cell in row))
        return table

    def _folded(self) -> Table:
        """The same with headings and labels over several lines."""
        table = self._empty(lines=True)
        for column in self._table.columns:
            title = "\n".join(wrap(heading(column), _HEADING_CHARACTERS))
            is_number = column.kind == "number"
            table.add_column(title, justify=_justify(column), no_wrap=is_number, overflow="fold")
        for row in self._rows:
            table.add_row(*(_cell(cell, "\n", characters=_LABEL_CHARACTERS) for cell in row))
        return table

    def _empty(self, *, lines: bool) -> Table:
        """The table without columns, with lines between rows where numbers may take several."""
        is_lined = lines and self._has_intervals
        return Table(title=self._table.title, title_justify="left", show_lines=is_lined)

    def _turned(self, between: str) -> Table:
        """A column for each row: its labels on top, its numbers below.

        Args:
            between: Stands between a number and its interval.
        """
        table = self._empty(lines=between == "\n")
        columns = list(self._table.columns)
        labels = [n for n, column in enumerate(columns) if column.kind == "label"]
        tops = [[_broken(row[n].text, _TURNED_CHARACTERS) for n in labels] for row in self._rows]
        heads = _side_by_side([[heading(columns[n]) for n in labels], *tops])
        table.add_column(heads[0])
        for head in heads[1:]:
            table.add_column(head, justify="right", overflow="fold")
        for number, column in enumerate(columns):
            if number not in labels:
                table.add_row(heading(column), *(_cell(row[number], between) for row in self._rows))
        return table


def _side_by_side(columns: Sequence[Sequence[str]]) -> list[str]:
    """Each column's texts below each other, so that the same ones begin at the same height."""
    heights = [1 + max(text.count("\n") for text in row) for row in zip(*columns, strict=True)]
    padded = [
        [t + "\n" * (height - 1 - t.count("\n")) for t, height in zip(column, heights, strict=True)]
        for column in columns
    ]
    return ["\n".join(column) for column in padded]


def _justify(column: Column) -> Literal["left", "right"]:
    return "left" if column.kind == "label" else "right"


def _cell(cell: ShownCell, between: str, *, characters: int = _NO_LIMIT) -> Text:
    text = Text(_broken(cell.text, characters), style="bold" if cell.rank == "best" else "")
    text.append("†" if cell.is_tied else "")
    if cell.interval is not None:
        low, high = cell.interval
        text.append(f"{between}[{low}, {high}]", style="dim not bold")
    return text


def _broken(text: str, characters: int) -> str:
    r"""An address over several lines, which end where one of its parts does.

    Example:
        >>> _broken("scores/split=train/model=m", 20)
        'scores/split=train/\nmodel=m'
    """
    first, *others = text.split("/")
    lines = [first]
    for part in others:
        if len(lines[-1]) + 1 + len(part) <= characters:
            lines[-1] += f"/{part}"
        else:
            lines[-1] += "/"
            lines.append(part)
    return "\n".join(lines)
