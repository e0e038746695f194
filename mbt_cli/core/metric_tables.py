"""Tables of metrics: one row a cell, one column a metric, the same way for all of them."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from mbt_cli.core.metric_titles import column
from mbt_cli.core.table_rows import (
    cell_rows,
    failed_notes,
    missing_note,
    pinned_note,
    present,
    question_notes,
    unit_of,
    varying,
)
from mbt_cli.core.table_ties import with_ties
from mbt_cli.core.tables import Column, ReportInputs, TableData

COUNTS_NOTE = "n: questions; failed: rollouts without a reply, left out of every number."
_JUDGED = "judge_accuracy"
_TOYS = ("embedded", "scripted", "canned", "recorded")


def metric_table(
    inputs: ReportInputs,
    *,
    name: str,
    title: str,
    metrics: Sequence[str],
    notes: Sequence[str] = (),
) -> TableData:
    """A table with one row a scored cell and the metrics that at least one cell has.

    Labels are the model and every axis in which rows differ; the best is looked for within a
    benchmark and split, and within a model where variants of it are compared.

    Args:
        inputs: Everything that was scored.
        name: Name of the table's files.
        title: What stands above it.
        metrics: Metrics in the order of the columns.
        notes: What a reader must know about these metrics.
    """
    shown = present(inputs, metrics)
    return table_of(inputs, cell_rows(inputs, shown), name=name, title=title, notes=notes)


def table_of(
    inputs: ReportInputs, rows: pl.DataFrame, *, name: str, title: str, notes: Sequence[str] = ()
) -> TableData:
    """The same for rows that are there already, such as those of a breakdown.

    Args:
        inputs: Everything that was scored.
        rows: As `cell_rows` gives them; further text columns become labels.
        name: Name of the table's files.
        title: What stands above it.
        notes: What a reader must know about these metrics.
    """
    metrics = [key.removesuffix("_n") for key in rows.columns if key.endswith("_n")]
    axes = [key for key, kind in rows.schema.items() if kind == pl.String and key != "address"]
    labels = varying(rows, axes, always=("model",))
    numbers = [column(m, unit_of(inputs, m), title=judge_title(m, inputs)) for m in metrics]
    table = TableData(
        name=name,
        title=title,
        columns=[*(Column(a, a, kind="label") for a in labels), *numbers, *_counts(metrics)],
        rows=_with_counts(rows, metrics),
        compared_within=_compared_within(labels),
    )
    told = [
        *pinned_note(rows, axes, labels),
        *([COUNTS_NOTE] if metrics else []),
        *_toy_note(inputs, metrics),
        *notes,
        *question_notes(table),
        *failed_notes(table),
        *missing_note(inputs),
    ]
    return with_ties(replace(table, notes=told), inputs)


def judge_title(metric: str, inputs: ReportInputs) -> str | None:
    """Another heading for the accuracy by a judge that is only there to show the path."""
    return "toy judge's accuracy" if metric == _JUDGED and _toys(inputs) else None


def _toys(inputs: ReportInputs) -> list[str]:
    return sorted({m for m in inputs.judge_models if inputs.models.get(m) in _TOYS})


def _toy_note(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    toys = _toys(inputs)
    if not toys or _JUDGED not in metrics:
        return []
    return [f"The judge is {', '.join(toys)}, a toy: its accuracy shows that the path works."]


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


def _compared_within(labels: Sequence[str]) -> list[str]:
    """Variants are compared with those of the same model, everything else across models."""
    within = {"benchmark", "split", *(["model"] if "variant" in labels else []), *_GROUPS}
    return [axis for axis in labels if axis in within]


_GROUPS = ("difficulty", "hops", "question_type")
