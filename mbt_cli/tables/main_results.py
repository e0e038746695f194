"""Main results: every cell's accuracy, length and failures, with intervals."""

from collections.abc import Sequence
from typing import Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.metric_titles import column
from mbt_cli.core.table_rows import (
    cell_rows,
    missing_note,
    pinned_note,
    present,
    question_notes,
    unit_of,
    varying,
)
from mbt_cli.core.table_ties import with_ties
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table

_JUDGED = "judge_accuracy"
_TOYS = ("embedded", "scripted", "canned")


class MainResults(Table):
    """One row a model, prompt and variant on each benchmark: how often it is right, and how long.

    n and failed stand for the first metric shown. Best and second best are looked for within a
    benchmark and split.
    """

    kind: Literal["main_results"] = "main_results"
    metrics: tuple[str, ...] = Field(
        default=(
            "exact_match",
            "substring_match",
            "f1_score",
            "math_match",
            "answer_rate",
            "judge_accuracy",
            "tokens",
            "aes",
            "degeneration",
        ),
        min_length=1,
    )
    """Metrics to show, in this order; those that no cell has are left out."""

    def build(self, inputs: ReportInputs) -> TableData:
        metrics = present(inputs, self.metrics)
        rows = cell_rows(inputs, metrics)
        labels = varying(rows, inputs.axes, always=("model",))
        numbers = [column(m, unit_of(inputs, m), title=self._title(m, inputs)) for m in metrics]
        table = TableData(
            name=self.kind,
            title="Main results",
            columns=[*_labels(labels), *numbers, *_counts(metrics)],
            rows=_with_counts(rows, metrics),
            compared_within=_compared_within(labels),
        )
        return with_ties(self._with_notes(table, inputs, labels), inputs)

    def _title(self, metric: str, inputs: ReportInputs) -> str | None:
        toys = [m for m in inputs.judge_models if inputs.models.get(m) in _TOYS]
        return "toy judge's accuracy" if metric == _JUDGED and toys else None

    def _with_notes(
        self, table: TableData, inputs: ReportInputs, labels: Sequence[str]
    ) -> TableData:
        notes = [
            *pinned_note(table.rows, inputs.axes, labels),
            "n: questions; failed: rollouts without a reply, left out of every number.",
            *_toy_note(inputs),
            *question_notes(table),
            *missing_note(inputs),
        ]
        return TableData(
            table.name, table.title, table.columns, table.rows, notes, table.compared_within
        )


def _labels(axes: Sequence[str]) -> list[Column]:
    return [Column(axis, axis, kind="label") for axis in axes]


def _counts(metrics: Sequence[str]) -> list[Column]:
    if not metrics:
        return []
    return [Column("n", "n", decimals=0), Column("failed", "failed", decimals=0)]


def _with_counts(rows: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """`n` is the most questions that any metric has; `failed` the rollouts that failed."""
    if not metrics:
        return rows
    return rows.with_columns(
        pl.max_horizontal(f"{metric}_n" for metric in metrics).alias("n"),
        pl.min_horizontal(f"{metric}_failed" for metric in metrics).alias("failed"),
    )


def _toy_note(inputs: ReportInputs) -> list[str]:
    toys = sorted({m for m in inputs.judge_models if inputs.models.get(m) in _TOYS})
    if not toys:
        return []
    return [f"The judge is {', '.join(toys)}, a toy: its accuracy shows that the path works."]


def _compared_within(labels: Sequence[str]) -> list[str]:
    """Variants are compared with those of the same model, everything else across models."""
    within = ["benchmark", "split", *(["model"] if "variant" in labels else [])]
    return [axis for axis in within if axis in labels]
