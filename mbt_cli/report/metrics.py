"""Tables of metrics: one row a cell, one column a metric, the same way for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.report.rows import (
    cell_rows,
    failed_notes,
    missing_note,
    pinned_note,
    present,
    question_notes,
    unit_of,
    varying,
)
from mbt_cli.report.ties import with_ties


@dataclass(frozen=True, slots=True)
class Shown:
    """How one metric is shown: heading, unit, digits, and which end is better."""

    title: str
    unit: str = "percent"
    decimals: int = 1
    best: Literal["high", "low", "none"] = "high"


_SHOWN = {
    "exact_match": Shown("exact match"),
    "substring_match": Shown("substring match"),
    "f1_score": Shown("F1"),
    "official_exact_match": Shown("official EM"),
    "official_f1": Shown("official F1"),
    "containment": Shown("whole-word match"),
    "math_match": Shown("math match"),
    "judge_accuracy": Shown("judge accuracy"),
    "answer_rate": Shown("answer rate"),
    "tokens": Shown("mean tokens", "tokens", 0, "low"),
    "degeneration": Shown("cut at the limit", best="low"),
    "degeneration_loops": Shown("ends in a loop", best="low"),
    "tokens_per_correct": Shown("tokens per correct", "tokens", 0, "low"),
    "aes": Shown("AES", "index", 3),
    "answer_hit": Shown("answer hit"),
    "answer_hit_substring": Shown("gold in trace (substring)"),
    "answer_hit_words": Shown("gold in trace (words)"),
    "answer_inclusive_errors": Shown("answer-inclusive errors", best="low"),
    "answer_inclusive_errors_of_errors": Shown("of all errors", best="low"),
    "answer_inclusive_errors_substring": Shown("by substring", best="low"),
    "answer_inclusive_errors_words": Shown("by whole words", best="low"),
    "rrp_arrival": Shown("arrival", "share", 3, "low"),
    "rrp_redundancy": Shown("redundancy", "share", 3, "low"),
    "rrp_regulation": Shown("regulation", "index", 3),
    "rrp_regulation_of_means": Shown("regulation of means", "index", 3),
    "rrp_arrival_length_aware": Shown("arrival, length-aware", "share", 3, "low"),
    "rrp_redundancy_length_aware": Shown("redundancy, length-aware", "share", 3, "low"),
    "rrp_regulation_length_aware": Shown("regulation, length-aware", "index", 3),
    "rrp_sentences": Shown("sentences", "sentences", 1, "none"),
    "rrp_one_paragraph": Shown("one paragraph", best="none"),
    "rrp_never_reached": Shown("never reached", best="low"),
    "rrp_not_judged": Shown("not judged", best="none"),
    "rrp_unread": Shown("unread (redundancy)", best="low"),
    "mqi": Shown("MQI", "index", 3),
    "mqi_of_means": Shown("MQI of means", "index", 3),
    "mqi_level": Shown("level", "level", 2),
    "mqi_phase_1": Shown("understanding"),
    "mqi_phase_2": Shown("planning"),
    "mqi_phase_3": Shown("monitoring"),
    "mqi_phase_4": Shown("self-correction"),
    "mqi_phase_5": Shown("verification"),
    "mqi_gamma": Shown("gamma", "gamma", 3),
    "mqi_not_judged": Shown("not judged", best="none"),
    "mqi_unread": Shown("unread (phases)", best="low"),
    "judge_unread": Shown("unread (answers)", best="low"),
    "answer_hit_unread": Shown("unread (answer hit)", best="low"),
    "judge_accuracy_if_unread_wrong": Shown("if unread were wrong", best="none"),
    "judge_accuracy_if_unread_right": Shown("if unread were right", best="none"),
    "judge_vote_agreement": Shown("votes agree", best="none"),
}
PHASES = tuple(f"mqi_phase_{number}" for number in range(1, 6))
"""Metrics of the five phases, in order."""


def shown(metric: str, unit: str = "percent") -> Shown:
    """How a metric is shown; one that is not listed goes by its own name and unit.

    Example:
        >>> shown("pass@4").title
        'pass@4'
    """
    if metric in _SHOWN:
        return _SHOWN[metric]
    decimals = {"percent": 1, "tokens": 0}.get(unit, 3)
    return Shown(metric.replace("_", " "), unit, decimals, "none")


def column(metric: str, unit: str = "percent", *, title: str | None = None) -> Column:
    """The column of a table that shows a metric."""
    one = shown(metric, unit)
    return Column(metric, title or one.title, unit=one.unit, decimals=one.decimals, best=one.best)


COUNTS_NOTE = "n: questions; failed: rollouts without a reply, left out of every number."
_JUDGED = "judge_accuracy"


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
    return "toy judge's accuracy" if metric == _JUDGED and inputs.toy_judges else None


def _toy_note(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    if not inputs.toy_judges or _JUDGED not in metrics:
        return []
    judges = ", ".join(inputs.toy_judges)
    return [f"The judge is {judges}, a toy: its accuracy only shows that the pipeline works."]


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
