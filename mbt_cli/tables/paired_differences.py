"""Paired differences: how far each cell is from its baseline, and which of it may be chance."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.cell_notes import notes_of
from mbt_cli.core.metric_tables import table_of
from mbt_cli.core.statistics import holm
from mbt_cli.core.table_rows import ADDRESS, cell_rows, missing_note, present
from mbt_cli.core.table_ties import SIGNIFICANT
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table
from mbt_cli.tables.main_results import MAIN_METRICS

_NOTE = (
    "Each number is the cell's minus its baseline's, on the n questions that both have: points "
    "where a column is in per cent."
)
_MARK = (
    "†: not significantly different from the baseline (exact McNemar for 0 / 1 values, else paired "
    f"bootstrap; Holm over the column; {SIGNIFICANT:.0%})."
)
_NONE = "No cell has a baseline: name one on the score stage, as in `baseline = { variant = ... }`."


_METRICS = tuple(metric for metric in MAIN_METRICS if metric != "aes")  # a difference itself


class PairedDifferences(Table):
    """One row a cell that has a baseline: differences on common questions, with intervals."""

    kind: Literal["paired_differences"] = "paired_differences"
    shows_metrics: ClassVar[bool] = False
    metrics: tuple[str, ...] = Field(default=_METRICS, min_length=1)
    """Metrics to show, in this order; those that no cell has are left out."""

    def build(self, inputs: ReportInputs) -> TableData:
        whole = inputs.summary.filter(pl.col("by").is_null())
        paired = whole.filter(pl.col("difference").is_not_null())
        # the scores would mark rows that are close to the best one, which has no meaning here
        found = replace(inputs, summary=_as_values(paired), scores=pl.LazyFrame(), missing=())
        metrics = present(found, self.metrics)
        rows = cell_rows(found, metrics)
        table = table_of(found, rows, name=self.kind, title="Differences from the baseline")
        is_there = not paired.is_empty()
        notes = [_NOTE, *_baseline_note(whole, inputs)] if is_there else [_NONE]
        marked = _with_marks(table.rows, paired, metrics)
        has_marks = any(marked[f"{metric}_tied"].any() for metric in metrics)
        return replace(
            table,
            columns=[replace(column, best="none") for column in table.columns],
            rows=marked,
            notes=[*table.notes, *notes, *([_MARK] if has_marks else []), *missing_note(inputs)],
        )


def _as_values(paired: pl.DataFrame) -> pl.DataFrame:
    """The summary with differences in the place of values, and n counting paired questions."""
    return paired.with_columns(
        pl.col("difference").alias("value"),
        pl.col("difference_low").alias("low"),
        pl.col("difference_high").alias("high"),
        pl.col("settings").str.json_path_match("$.paired_questions").cast(pl.Int64).alias("n"),
    )


def _with_marks(rows: pl.DataFrame, paired: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """The rows with METRIC_p as it was tested, and METRIC_tied where Holm leaves it to chance."""
    for metric in metrics:
        tested = paired.filter(pl.col("metric") == metric).select(
            ADDRESS, pl.col("p").alias(f"{metric}_p")
        )
        rows = rows.join(tested, on=ADDRESS, how="left", maintain_order="left")
        corrected = holm(rows[f"{metric}_p"].to_list())
        tied = [p is not None and p >= SIGNIFICANT for p in corrected]
        rows = rows.with_columns(pl.Series(f"{metric}_tied", tied, dtype=pl.Boolean))
    return rows


def _baseline_note(whole: pl.DataFrame, inputs: ReportInputs) -> list[str]:
    """What the baselines have in common, and no other cell has."""
    is_baseline = pl.col(ADDRESS).is_in(_baselines(inputs.cells))
    baselines, others = whole.filter(is_baseline), whole.filter(~is_baseline)
    values = {axis: baselines[axis].unique().to_list() for axis in inputs.axes}
    told = [
        f"{axis} {found[0]}"
        for axis, found in values.items()
        if len(found) == 1 and found[0] is not None and found[0] not in others[axis]
    ]
    return [f"The baseline: {', '.join(told)}."] if told else []


def _baselines(cells: pl.DataFrame) -> pl.Series:
    """Addresses of score cells whose own rollouts are what others are compared with."""
    found = [
        cell[ADDRESS]
        for cell, reads in notes_of(cells.filter(pl.col("kind") == "score"), "reads")
        if reads and reads["rollouts"] == reads.get("baseline_rollouts")
    ]
    return pl.Series(found, dtype=pl.String)
