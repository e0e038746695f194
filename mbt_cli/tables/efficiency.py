"""Efficiency: what a right answer costs, and how far accuracy and length moved."""

from typing import Literal

import polars as pl

from mbt_cli.core.metric_tables import table_of
from mbt_cli.core.table_rows import ADDRESS, cell_rows, present
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table

_METRICS = ("judge_accuracy", "exact_match", "tokens", "tokens_per_correct", "aes")
_NOTES = (
    "Against the baseline: on the questions that both have; accuracy in points, tokens in per "
    "cent of the baseline's. The baseline itself has no change.",
)


class Efficiency(Table):
    """Accuracy, tokens, tokens per right answer and AES, with the change from the baseline."""

    kind: Literal["efficiency"] = "efficiency"

    def build(self, inputs: ReportInputs) -> TableData:
        rows = cell_rows(inputs, present(inputs, _METRICS))
        table = table_of(inputs, rows, name=self.kind, title="Efficiency", notes=_NOTES)
        return _with_changes(table, inputs)


def _with_changes(table: TableData, inputs: ReportInputs) -> TableData:
    """The table with the changes of accuracy and length beside n and failed."""
    accuracy = next((m for m in _METRICS[:2] if m in table.rows.columns), None)
    if accuracy is None or "tokens" not in table.rows.columns:
        return table
    whole = inputs.summary.filter(pl.col("by").is_null())
    gained = _of(whole, accuracy, pl.col("difference"), "accuracy_change")
    longer = _of(whole, "tokens", pl.col("difference") / pl.col("baseline"), "tokens_change")
    rows = table.rows.join(gained, on=ADDRESS, how="left").join(longer, on=ADDRESS, how="left")
    changes = [
        Column("accuracy_change", "accuracy change", unit="percent"),
        Column("tokens_change", "tokens change", unit="percent"),
    ]
    columns = [*table.columns[:-2], *changes, *table.columns[-2:]]
    return TableData(table.name, table.title, columns, rows, table.notes, table.compared_within)


def _of(whole: pl.DataFrame, metric: str, value: pl.Expr, name: str) -> pl.DataFrame:
    return whole.filter(pl.col("metric") == metric).select(ADDRESS, value.alias(name))
