"""A table on the terminal: as it stands where there is room, else turned on its side."""

from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mbt_cli.core.shown_tables import ShownCell, heading, reading_notes, shown_rows
from mbt_cli.core.tables import Column, TableData

_TURNED_ROWS = 6
_NO_LIMIT = 10_000


class StoredTable:
    """A table that fits itself to the terminal; numbers bear their intervals, the best is bold."""

    def __init__(self, table: TableData) -> None:
        self._table = table
        self._rows = shown_rows(table)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        upright = self._upright()
        wanted = Measurement.get(console, options.update(max_width=_NO_LIMIT), upright).maximum
        if wanted <= options.max_width or len(self._rows) > _TURNED_ROWS:
            yield upright
        else:
            yield self._turned()
        for note in reading_notes(self._table):
            yield Text(note, style="dim")

    def _upright(self) -> Table:
        table = Table(title=self._table.title, title_justify="left", show_lines=True)
        for column in self._table.columns:
            table.add_column(heading(column), justify=_justify(column), no_wrap=True)
        for row in self._rows:
            table.add_row(*(_cell(cell, "\n") for cell in row))
        return table

    def _turned(self) -> Table:
        """A column for each row: its labels on top, its numbers below."""
        table = Table(title=self._table.title, title_justify="left")
        columns = list(self._table.columns)
        labels = [n for n, column in enumerate(columns) if column.kind == "label"]
        table.add_column("\n".join(heading(columns[n]) for n in labels))
        for row in self._rows:
            table.add_column("\n".join(row[n].text for n in labels), justify="right")
        for number, column in enumerate(columns):
            if number not in labels:
                table.add_row(heading(column), *(_cell(row[number], " ") for row in self._rows))
        return table


def _justify(column: Column) -> Literal["left", "right"]:
    return "left" if column.kind == "label" else "right"


def _cell(cell: ShownCell, between: str) -> Text:
    text = Text(cell.text, style="bold" if cell.rank == "best" else "")
    if cell.interval is not None:
        low, high = cell.interval
        text.append(f"{between}[{low}, {high}]", style="dim not bold")
    return text
