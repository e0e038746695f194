"""Training runs: what each run was trained on, for how long, and where its loss ended."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.notes import TRAINING, funnel_rows, notes_of
from mbt_cli.core.number_text import significant_decimals
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table
from mbt_cli.report.metrics import metric_table, table_of
from mbt_cli.report.rows import ADDRESS, cell_rows, group_rows, missing_note, present
from mbt_cli.report.ties import SIGNIFICANT
from mbt_cli.scores.statistics import holm

MAIN_METRICS = (
    "exact_match",
    "substring_match",
    "f1_score",
    "math_match",
    "answer_rate",
    "judge_accuracy",
    "tokens",
    "aes",
    "degeneration",
)


class MainResults(Table):
    """One row a model, prompt and variant on each benchmark: how often it is right, how long."""

    kind: Literal["main_results"] = "main_results"
    metrics: tuple[str, ...] = Field(default=MAIN_METRICS, min_length=1)
    """Metrics to show, in this order; those that no cell has are left out."""

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(inputs, name=self.kind, title="Main results", metrics=self.metrics)


_INCLUSIVE_METRICS = (
    "answer_inclusive_errors",
    "answer_inclusive_errors_of_errors",
    "answer_inclusive_errors_substring",
    "answer_inclusive_errors_words",
    "answer_hit",
    "answer_hit_substring",
    "answer_hit_words",
    "judge_accuracy",
)
_INCLUSIVE_NOTES = ("Shares are of all predictions; `of all errors` is of wrong predictions.",)


class AnswerInclusiveErrorsTable(Table):
    """How often a trace reaches the gold answer and the final answer is wrong all the same."""

    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs,
            name=self.kind,
            title="Answer-inclusive errors",
            metrics=_INCLUSIVE_METRICS,
            notes=_INCLUSIVE_NOTES,
        )


class DataFunnel(Table):
    """One row a cell and step: rollouts, kept, traces, passed the gates, trained."""

    kind: Literal["data_funnel"] = "data_funnel"

    def build(self, inputs: ReportInputs) -> TableData:
        return TableData(
            name=self.kind,
            title="Data funnel",
            columns=[
                Column("address", "cell", kind="label"),
                Column("step", "step", kind="label"),
                Column("count", "count", decimals=0),
                Column("of_previous", "of the step before", unit="percent"),
                Column("of_first", "of the first step", unit="percent"),
            ],
            rows=funnel_rows(inputs.cells),
        )


_DEGENERATION_METRICS = (
    "degeneration",
    "degeneration_loops",
    "answer_rate",
    "judge_accuracy",
    "exact_match",
    "tokens",
)
_DEGENERATION_NOTES = (
    "A reply that was cut has no answer, so it counts as wrong in every accuracy.",
    "Cut and looping replies overlap; neither is part of the other.",
)


class DegenerationTable(Table):
    """Share of replies cut at the limit and of those that end in a loop, beside the accuracy."""

    kind: Literal["degeneration"] = "degeneration"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs,
            name=self.kind,
            title="Degeneration",
            metrics=_DEGENERATION_METRICS,
            notes=_DEGENERATION_NOTES,
        )


class Difficulty(Table):
    """One row a cell and group of questions; the score stage must name the breakdown in `by`."""

    kind: Literal["difficulty"] = "difficulty"
    by: Literal["difficulty", "hops", "question_type"] = "difficulty"
    """What questions are grouped by."""
    metrics: tuple[str, ...] = Field(
        default=("judge_accuracy", "exact_match", "f1_score", "tokens", "degeneration"),
        min_length=1,
    )
    """Metrics to show, in this order; those that no cell has are left out."""

    def build(self, inputs: ReportInputs) -> TableData:
        rows = group_rows(inputs, present(inputs, self.metrics), self.by)
        title = f"Results by {self.by.replace('_', ' ')}"
        notes = [] if rows.height else [f'No score stage has `by = ["{self.by}"]`.']
        return table_of(inputs, rows, name=self._name(), title=title, notes=notes)

    def _name(self) -> str:
        return self.kind if self.by == "difficulty" else f"{self.kind}_{self.by}"


_EFFICIENCY_METRICS = ("judge_accuracy", "exact_match", "tokens", "tokens_per_correct", "aes")
_EFFICIENCY_NOTES = (
    "Against the baseline: on the questions that both have; accuracy in points, tokens in per "
    "cent of the baseline's. The baseline itself has no change.",
)


class Efficiency(Table):
    """Accuracy, tokens, tokens per right answer and AES, with the change from the baseline."""

    kind: Literal["efficiency"] = "efficiency"

    def build(self, inputs: ReportInputs) -> TableData:
        rows = cell_rows(inputs, present(inputs, _EFFICIENCY_METRICS))
        table = table_of(inputs, rows, name=self.kind, title="Efficiency", notes=_EFFICIENCY_NOTES)
        return _with_changes(table, inputs)


def _with_changes(table: TableData, inputs: ReportInputs) -> TableData:
    """The table with the changes of accuracy and length beside n and failed."""
    accuracy = next((m for m in _EFFICIENCY_METRICS[:2] if m in table.rows.columns), None)
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


_JUDGE_METRICS = (
    "judge_unread",
    "judge_accuracy",
    "judge_accuracy_if_unread_wrong",
    "judge_accuracy_if_unread_right",
    "judge_vote_agreement",
    "answer_hit_unread",
    "rrp_unread",
    "mqi_unread",
)
_JUDGE_NOTES = (
    "The range is the score if every unread verdict were wrong, and if every one were right.",
)


class JudgeHealth(Table):
    """Share of unread replies of each judge, the range they leave open, and how far votes agree."""

    kind: Literal["judge_health"] = "judge_health"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs, name=self.kind, title="Judge health", metrics=_JUDGE_METRICS, notes=_JUDGE_NOTES
        )


_MQI_METRICS = (
    "mqi",
    "mqi_of_means",
    "mqi_level",
    "mqi_phase_1",
    "mqi_phase_2",
    "mqi_phase_3",
    "mqi_phase_4",
    "mqi_phase_5",
    "mqi_gamma",
    "mqi_not_judged",
    "mqi_unread",
)
_MQI_NOTES = (
    "MQI: mean over samples; MQI of means: mean level x baseline tokens / mean tokens.",
    "Phases: share of judged traces that show it; gamma: confidence of the judge against right.",
)


class MQITable(Table):
    """Metacognitive Quality Index by sample and by method, level, and the share of each phase."""

    kind: Literal["mqi"] = "mqi"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs,
            name=self.kind,
            title="Metacognitive Quality Index",
            metrics=_MQI_METRICS,
            notes=_MQI_NOTES,
        )


_NOTE = (
    "Each number is the cell's minus its baseline's, on the n questions that both have: points "
    "where a column is in per cent."
)
_MARK = (
    "†: not significantly different from the baseline (exact McNemar for 0 / 1 values, else paired "
    f"bootstrap; Holm over the column; {SIGNIFICANT:.0%})."
)
_NONE = "No cell has a baseline: name one on the score stage, as in `baseline = { variant = ... }`."


_PAIRED_METRICS = tuple(metric for metric in MAIN_METRICS if metric != "aes")  # a difference itself


class PairedDifferences(Table):
    """One row a cell that has a baseline: differences on common questions, with intervals."""

    kind: Literal["paired_differences"] = "paired_differences"
    shows_metrics: ClassVar[bool] = False
    metrics: tuple[str, ...] = Field(default=_PAIRED_METRICS, min_length=1)
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


_RRP_METRICS = (
    "rrp_arrival",
    "rrp_redundancy",
    "rrp_regulation",
    "rrp_regulation_of_means",
    "rrp_arrival_length_aware",
    "rrp_redundancy_length_aware",
    "rrp_regulation_length_aware",
    "rrp_sentences",
    "rrp_one_paragraph",
    "rrp_never_reached",
    "rrp_not_judged",
    "rrp_unread",
)
_RRP_NOTES = (
    "Arrival: share of a trace's sentences up to the answer, 1 if it is never reached.",
    "A trace of one paragraph that reaches the answer has arrival 1, however early it does.",
    "Not judged: rollouts that were cut or have no trace; they enter no mean.",
)


class RRPTable(Table):
    """Arrival, redundancy and regulation of the traces, plain and against the baseline's length."""

    kind: Literal["rrp"] = "rrp"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs,
            name=self.kind,
            title="Reach-Redundancy Profile",
            metrics=_RRP_METRICS,
            notes=_RRP_NOTES,
        )


_SUMS = (
    "rows",
    "failed_rows",
    "sent",
    "retried",
    "reused",
    "prompt_tokens",
    "completion_tokens",
)
_TOKENS_NOTES = (
    "Tokens are those of the rows that were kept; a reply that was asked again counts once.",
    "Hours: time of the last run of each cell, added up; cells that ran at once overlap.",
)


class TokensByStage(Table):
    """One row a stage: cells, rows, failures, requests, tokens and hours."""

    kind: Literal["tokens_by_stage"] = "tokens_by_stage"

    def build(self, inputs: ReportInputs) -> TableData:
        cells = inputs.cells
        stages = cells.group_by("stage", "kind", maintain_order=True)
        rows = stages.agg(
            pl.len().cast(pl.Int64).alias("cells"),
            *(pl.col(name).sum() for name in _SUMS),
            (pl.col("seconds").sum() / 3600).alias("hours"),
        ).rename({"kind": "stage_kind"})
        counts = [Column(name, name.replace("_", " "), decimals=0) for name in ("cells", *_SUMS)]
        return TableData(
            name=self.kind,
            title="Tokens by stage",
            columns=[
                Column("stage", "stage", kind="label"),
                Column("stage_kind", "kind", kind="label"),
                *counts,
                Column("hours", "hours", decimals=2),
            ],
            rows=rows,
            notes=_TOKENS_NOTES,
        )


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
