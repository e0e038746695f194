"""Training runs: what each run was trained on, for how long, and where its loss ended."""

from collections.abc import Mapping
from typing import Any, Literal

import polars as pl

from mbt_cli.core.cell_notes import TRAINING, notes_of
from mbt_cli.core.number_text import significant_decimals
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table

_SIGNIFICANT = 3
_MOST_DECIMALS = 8
_FIRST = ("method", "rows", "epochs", "steps", "tokens", "last_loss")


class TrainingRuns(Table):
    """One row a trained cell; columns are what the runs told, those of all runs first."""

    kind: Literal["training_runs"] = "training_runs"

    def build(self, inputs: ReportInputs) -> TableData:
        trained = inputs.cells.filter(pl.col("kind") == "train")
        found: list[dict[str, Any]] = [
            {"address": cell["address"], "hours": _hours(cell, told), **_plain(told)}
            for cell, told in notes_of(trained, TRAINING)
        ]
        names = list(dict.fromkeys(name for row in found for name in row))
        order = [n for n in _FIRST if n in names]
        order += [n for n in names if n not in (*_FIRST, "address", "hours", "seconds")]
        rows = pl.DataFrame(
            {name: [row.get(name) for row in found] for name in ("address", *order, "hours")},
            strict=False,
        )
        columns = [_column(rows[name]) for name in order]
        hours = Column("hours", "hours", decimals=2)
        return TableData(
            name=self.kind,
            title="Training runs",
            columns=[Column("address", "cell", kind="label"), *columns, hours],
            rows=rows,
        )


def _hours(cell: Mapping[str, Any], told: Mapping[str, Any]) -> float:
    """Of training, over all processes that it took; of the cell where the run did not say."""
    return float(told.get("seconds") or cell["seconds"]) / 3600


def _plain(told: dict[str, Any]) -> dict[str, Any]:
    """Numbers and texts only: a nested object has no place in a cell of a table."""
    return {k: v for k, v in told.items() if isinstance(v, int | float | str)}


def _column(values: pl.Series) -> Column:
    title = values.name.replace("_", " ")
    if not values.dtype.is_numeric():
        return Column(values.name, title, kind="label")
    return Column(values.name, title, decimals=_decimals(values))


def _decimals(values: pl.Series) -> int:
    """Enough to show the smallest number, such as a learning rate, with three digits."""
    if values.dtype.is_integer():
        return 0
    smallest = min((abs(value) for value in values.drop_nulls() if value), default=1.0)
    return min(_MOST_DECIMALS, significant_decimals(smallest, _SIGNIFICANT))
