"""Tables as the HTML report takes them: texts as every other format shows them, numbers to sort."""

from typing import Any

from mbt_cli.core.chat import Json
from mbt_cli.core.shown_tables import ShownCell, heading, reading_notes, shown_rows
from mbt_cli.core.tables import TableData

_ADDRESS = "address"


def page_table(table: TableData) -> dict[str, Json]:
    """One table: its columns, its cells row by row, and the address that each row tells of."""
    raw = [table.rows[column.key].to_list() for column in table.columns]
    has_address = _ADDRESS in table.rows.columns
    return {
        "name": table.name,
        "title": table.title,
        "columns": [
            {"key": c.key, "title": heading(c), "kind": c.kind, "best": c.best}
            for c in table.columns
        ],
        "rows": [
            [_cell(cell, values[number]) for cell, values in zip(row, raw, strict=True)]
            for number, row in enumerate(shown_rows(table))
        ],
        "addresses": table.rows[_ADDRESS].to_list() if has_address else [],
        "notes": reading_notes(table, underlines=True),
    }


def _cell(cell: ShownCell, value: Any) -> dict[str, Json]:
    """Only what is there; `v` is the unrounded number."""
    told = {
        "t": cell.text,
        "v": value if isinstance(value, int | float) else None,
        "i": list(cell.interval) if cell.interval else None,
        "n": cell.n,
        "f": cell.failed,
        "r": cell.rank or None,
        "d": cell.is_tied or None,
    }
    return {key: held for key, held in told.items() if held is not None}
