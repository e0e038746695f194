"""The table of what requests have cost."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.lineage_notes import notes_of
from mbt_cli.core.number_text import significant_decimals
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table
from mbt_cli.report.metrics import missing_notes
from mbt_cli.report.notes import ADDRESS, question_scores
from mbt_cli.report.seeds import SEED, without_seed

_CORRECT = ("judge_accuracy", "verified", "math_match", "exact_match")
_COUNTS = ("requests", "input", "cached", "output")
_TOTAL = "total"


class Cost(Table):
    """One row per stage, model and benchmark: requests, tokens, money, money per correct answer."""

    kind: Literal["cost"] = "cost"
    by: tuple[str, ...] = Field(default=("benchmark",), max_length=8)
    """Axes whose values have rows of their own, beside stage and model."""
    correct: str | None = None
    """Metric that says which answers are correct. Default: the first of `judge_accuracy`,
    `verified`, `math_match` and `exact_match` that a score has."""

    shows_metrics = False

    def reads(self) -> Collection[str]:
        return () if self.correct is None else (self.correct,)

    def build(self, inputs: ReportInputs) -> TableData:
        metric, correct = self._correct_answers(inputs)
        groups: dict[tuple[str | None, ...], dict[str, Any]] = {}
        asked = list(inputs.spending.iter_rows(named=True))
        axes = [axis for axis in self.by if any(axis in axes_of(one[ADDRESS]) for one in asked)]
        for one in asked:
            own = axes_of(one[ADDRESS])
            key = (one[ADDRESS].partition("/")[0], one["model"], *(own.get(axis) for axis in axes))
            _add(groups.setdefault(key, _nothing()), one, correct.get(one[ADDRESS]))
        labels = ("stage", "asked", *axes)
        rows = [
            {**dict(zip(labels, key, strict=True)), **_finished(sums)}
            for key, sums in groups.items()
        ]
        if len(rows) > 1:
            total = _nothing()
            for one in asked:
                _add(total, one, None)
            whole = dict.fromkeys(labels)
            rows.append({**whole, "stage": _TOTAL, **_finished(total), "money_per_correct": None})
        schema = {
            **dict.fromkeys(labels, pl.String()),
            **dict.fromkeys(_COUNTS, pl.Int64()),
            **dict.fromkeys(("money", "at_most", "money_per_correct"), pl.Float64()),
        }
        return TableData(
            name=self.kind,
            title="Cost",
            columns=[
                Column("stage", "stage", kind="label"),
                Column("asked", "model", kind="label"),
                *(Column(axis, axis, kind="label") for axis in axes),
                Column("requests", "requests", decimals=0),
                Column("input", "input tokens", decimals=0),
                Column("cached", "of them cached", decimals=0),
                Column("output", "output tokens", decimals=0),
                *_money_columns(rows, inputs.currency),
            ],
            rows=pl.DataFrame(rows, schema=schema),
            notes=[*_notes(rows, metric), *missing_notes(inputs)],
        )

    def _correct_answers(self, inputs: ReportInputs) -> tuple[str, Mapping[str, float]]:
        """The metric that says what is correct, and rollout cells with their correct answers."""
        known = set(inputs.summary["metric"]) if "metric" in inputs.summary.columns else set()
        names = (self.correct,) if self.correct else _CORRECT
        metric = next((name for name in names if name in known), None)
        if metric is None:
            return "", {}
        values = question_scores(inputs, [metric])
        found: dict[str, float] = {}
        for cell, reads in notes_of(inputs.cells.filter(pl.col("kind") == "score"), "reads"):
            rollouts = reads.get("rollouts") or []
            if len(rollouts) != 1 or rollouts[0] in found:
                continue
            own = pl.lit(axes_of(cell[ADDRESS]).get(SEED), dtype=pl.String)
            scored = values.filter(
                (pl.col(ADDRESS) == cell[ADDRESS])
                | ((pl.col(ADDRESS) == without_seed(cell[ADDRESS])) & pl.col(SEED).eq_missing(own))
            )
            if scored.height:
                right = scored["value"].fill_null(0.0) * scored["n"]
                found[rollouts[0]] = float(right.sum())
        return metric, found


def _nothing() -> dict[str, Any]:
    return {
        **dict.fromkeys(_COUNTS, 0),
        **dict.fromkeys(("money", "at_most"), None),
        **dict.fromkeys(("correct", "money_of_scored"), 0.0),
    }


def _add(sums: dict[str, Any], one: Mapping[str, Any], correct: float | None) -> None:
    for name in _COUNTS:
        sums[name] += one[name]
    if one["money"] is None:
        return
    for name in ("money", "at_most"):
        sums[name] = (sums[name] or 0.0) + one[name]
    if correct is not None:
        sums["correct"] += correct
        sums["money_of_scored"] += one["money"]


def _finished(sums: dict[str, Any]) -> dict[str, Any]:
    correct, money = sums.pop("correct"), sums.pop("money_of_scored")
    return {**sums, "money_per_correct": money / correct if correct else None}


def _money_columns(rows: Sequence[Mapping[str, Any]], currency: str) -> list[Column]:
    titles = {
        "money": currency,
        "at_most": f"{currency} at most",
        "money_per_correct": f"{currency} per correct answer",
    }
    shown = {name: [row[name] for row in rows if row[name]] for name in titles}
    if not any(row["at_most"] != row["money"] for row in rows):
        shown["at_most"] = []
    return [
        Column(name, title, decimals=max(2, significant_decimals(min(shown[name]), 2)))
        for name, title in titles.items()
        if shown[name]
    ]


def _notes(rows: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    notes = ["Every request counts that was paid for, those of replaced and retried rows too."]
    if any(row["at_most"] != row["money"] for row in rows):
        notes.append("At most: with requests whose end is not known, each at the most it can cost.")
    if metric and any(row["money_per_correct"] is not None for row in rows):
        notes.append(
            f"Per correct answer: the cost of a stage's scored rollouts, divided by their correct "
            f"answers ({metric}); judges and other stages are not in it."
        )
    return notes
