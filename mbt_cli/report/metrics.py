"""Tables with one row per scored cell and one column per metric, with marks and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.measures import JUDGED_BY, mean_of_value
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.report.formats import formatted_rows
from mbt_cli.scores.statistics import Quantity, bootstrap, bootstrap_p, holm, mcnemar_p

ADDRESS = "address"
SIGNIFICANT = 0.05
"""Differences with a corrected p value below this are significant."""
_JUDGED = "judge_accuracy"
_COUNTS_NOTE = "n: questions; failed: rollouts without a reply, excluded from every number."


@dataclass(frozen=True, slots=True)
class Display:
    """How a metric is shown: heading, unit, decimals, and which end is better."""

    title: str
    unit: str = "percent"
    decimals: int = 1
    best: Literal["high", "low", "none"] = "high"


_DISPLAYS = {
    "exact_match": Display("exact match"),
    "substring_match": Display("substring match"),
    "f1_score": Display("F1"),
    "official_exact_match": Display("official EM"),
    "official_f1": Display("official F1"),
    "containment": Display("whole-word match"),
    "math_match": Display("math match"),
    "judge_accuracy": Display("judge accuracy"),
    "answer_rate": Display("answer rate"),
    "tokens": Display("mean tokens", "tokens", 0, "low"),
    "degeneration": Display("cut at the limit", best="low"),
    "degeneration_loops": Display("ends in a loop", best="low"),
    "tokens_per_correct": Display("tokens per correct", "tokens", 0, "low"),
    "aes": Display("AES", "index", 3),
    "answer_hit": Display("answer hit"),
    "answer_hit_substring": Display("gold in trace (substring)"),
    "answer_hit_words": Display("gold in trace (words)"),
    "answer_inclusive_errors": Display("answer-inclusive errors", best="low"),
    "answer_inclusive_errors_of_errors": Display("of all errors", best="low"),
    "answer_inclusive_errors_substring": Display("by substring", best="low"),
    "answer_inclusive_errors_words": Display("by whole words", best="low"),
    "rrp_arrival": Display("arrival", "share", 3, "low"),
    "rrp_redundancy": Display("redundancy", "share", 3, "low"),
    "rrp_regulation": Display("regulation", "index", 3),
    "rrp_regulation_of_means": Display("regulation of means", "index", 3),
    "rrp_arrival_length_aware": Display("arrival, length-aware", "share", 3, "low"),
    "rrp_redundancy_length_aware": Display("redundancy, length-aware", "share", 3, "low"),
    "rrp_regulation_length_aware": Display("regulation, length-aware", "index", 3),
    "rrp_sentences": Display("sentences", "sentences", 1, "none"),
    "rrp_one_paragraph": Display("one paragraph", best="none"),
    "rrp_never_reached": Display("never reached", best="low"),
    "rrp_not_judged": Display("not judged", best="none"),
    "rrp_unread": Display("unparsed (redundancy)", best="low"),
    "mqi": Display("MQI", "index", 3),
    "mqi_of_means": Display("MQI of means", "index", 3),
    "mqi_level": Display("level", "level", 2),
    "mqi_phase_1": Display("understanding"),
    "mqi_phase_2": Display("planning"),
    "mqi_phase_3": Display("monitoring"),
    "mqi_phase_4": Display("self-correction"),
    "mqi_phase_5": Display("verification"),
    "mqi_gamma": Display("gamma", "gamma", 3),
    "mqi_not_judged": Display("not judged", best="none"),
    "mqi_unread": Display("unparsed (phases)", best="low"),
    "judge_unread": Display("unparsed (answers)", best="low"),
    "answer_hit_unread": Display("unparsed (answer hit)", best="low"),
    "judge_accuracy_if_unread_wrong": Display("if unparsed were wrong", best="none"),
    "judge_accuracy_if_unread_right": Display("if unparsed were right", best="none"),
    "judge_vote_agreement": Display("votes agree", best="none"),
}
PHASES = tuple(f"mqi_phase_{number}" for number in range(1, 6))
"""Metrics of the five phases, in order."""


def display_of(metric: str, unit: str = "percent") -> Display:
    """How a metric is shown; an unlisted one has its own name as the heading, and its unit.

    Example:
        >>> display_of("pass@4").title
        'pass@4'
    """
    name, _, judge = metric.partition(JUDGED_BY)
    if judge:
        one = display_of(name, unit)
        return replace(one, title=f"{one.title} ({judge})")
    if metric in _DISPLAYS:
        return _DISPLAYS[metric]
    decimals = {"percent": 1, "tokens": 0}.get(unit, 3)
    return Display(metric.replace("_", " "), unit, decimals, "none")


def display_title(metric: str, inputs: ReportInputs) -> str:
    """The heading of a metric; the accuracy by a toy judge is labelled as such."""
    name, _, judge = metric.partition(JUDGED_BY)
    if name == _JUDGED and (judge in inputs.toy_judges if judge else inputs.toy_judges):
        return "toy judge's accuracy" + (f" ({judge})" if judge else "")
    return display_of(metric).title


def present(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    """The metrics that at least one cell has; a metric of several judge models, once per model."""
    found = inputs.summary["metric"].unique(maintain_order=True)
    return [
        name
        for metric in metrics
        for name in found
        if name == metric or name.startswith(f"{metric}{JUDGED_BY}")
    ]


def metric_table(
    inputs: ReportInputs,
    *,
    name: str,
    title: str,
    metrics: Sequence[str],
    notes: Sequence[str] = (),
    by: str | None = None,
) -> TableData:
    """A table with one row per scored cell and a column for each metric that some cell has.

    Its labels are the model and every axis in which rows differ. Numbers are compared within a
    benchmark and split, and within a model where the study has variants of it.

    Args:
        inputs: The data of the report.
        name: Name of the table's files.
        title: Title of the table.
        metrics: Metrics in the order of the columns.
        notes: Notes on these metrics.
        by: Breakdown whose groups become the rows of each cell; None for all questions.
    """
    metrics = present(inputs, metrics)
    rows = cell_rows(inputs, metrics) if by is None else _group_rows(inputs, metrics, by)
    axes = [*inputs.axes, *([by] if by else [])]
    labels = varying(rows, axes, always=("model",))
    within = {"benchmark", "split", by, *(["model"] if "variant" in labels else [])}
    counts = [Column("n", "n", decimals=0), Column("failed", "failed", decimals=0)]
    table = TableData(
        name=name,
        title=title,
        columns=[
            *(Column(axis, axis, kind="label") for axis in labels),
            *(_metric_column(inputs, metric) for metric in metrics),
            *(counts if metrics else []),
        ],
        rows=_with_counts(rows, metrics),
        compared_within=[axis for axis in labels if axis in within],
    )
    constant = [
        f"{axis} {rows[axis][0]}"
        for axis in axes
        if axis not in labels and rows.height and rows[axis][0]
    ]
    all_notes = [
        *([f"All rows: {', '.join(constant)}."] if constant else []),
        *([_COUNTS_NOTE] if metrics else []),
        *_toy_notes(inputs, metrics),
        *notes,
        *_question_notes(table),
        *_failed_notes(table),
        *missing_notes(inputs),
    ]
    return _with_ties(replace(table, notes=all_notes), inputs)


def cell_rows(inputs: ReportInputs, metrics: Sequence[str]) -> pl.DataFrame:
    """One row per scored cell in the order of the manifest; missing cells have nulls.

    Returns:
        `address`, every axis as text, and METRIC, METRIC_low, METRIC_high, METRIC_n and
        METRIC_failed for each metric, over all questions.
    """
    whole = inputs.summary.filter(pl.col("by").is_null())
    axes = list(inputs.axes)
    rows = whole.select(ADDRESS, *axes).unique(maintain_order=True)
    rows = _with_metrics(rows, whole, metrics, [ADDRESS])
    missing = [
        {ADDRESS: address, **{axis: axes_of(address).get(axis) for axis in axes}}
        for address in inputs.missing
    ]
    schema = {ADDRESS: pl.String(), **dict.fromkeys(axes, pl.String())}
    rows = pl.concat([rows, pl.DataFrame(missing, schema=schema)], how="diagonal")
    return _sorted_by_axes(rows, axes)


def _group_rows(inputs: ReportInputs, metrics: Sequence[str], by: str) -> pl.DataFrame:
    """One row per scored cell and group of the breakdown `by`, whose column follows the axes."""
    parts = inputs.summary.filter(pl.col("by") == by).with_columns(pl.col("group").alias(by))
    rows = parts.select(ADDRESS, *inputs.axes, by).unique(maintain_order=True)
    rows = _with_metrics(rows, parts, metrics, [ADDRESS, by])
    order = {"easy": "0", "medium": "1", "hard": "2"}
    rows = rows.sort(pl.col(by).replace(order), maintain_order=True)
    return _sorted_by_axes(rows, [*inputs.axes, by])


def _with_metrics(
    rows: pl.DataFrame, summary: pl.DataFrame, metrics: Sequence[str], keys: Sequence[str]
) -> pl.DataFrame:
    parts = {"": "value", "_low": "low", "_high": "high", "_n": "n", "_failed": "failed"}
    for metric in metrics:
        own = summary.filter(pl.col("metric") == metric)
        values = [pl.col(name).alias(f"{metric}{suffix}") for suffix, name in parts.items()]
        rows = rows.join(own.select(*keys, *values), on=list(keys), how="left")
    return rows


def _sorted_by_axes(rows: pl.DataFrame, axes: Sequence[str]) -> pl.DataFrame:
    """Rows sorted by their axes, the values of an axis in the order of their first row."""
    ranked = rows
    for axis in axes:
        order = rows[axis].unique(maintain_order=True)
        ranks = pl.DataFrame({axis: order, f"{axis}_rank": range(len(order))})
        ranked = ranked.join(ranks, on=axis, how="left", nulls_equal=True)
    names = [f"{axis}_rank" for axis in axes]
    return ranked.sort(names, maintain_order=True).drop(names) if names else ranked


def varying(rows: pl.DataFrame, axes: Sequence[str], *, always: Sequence[str] = ()) -> list[str]:
    """Axes in which rows differ, and those of `always` that some row has."""
    return [
        axis
        for axis in axes
        if rows[axis].n_unique() > 1 or (axis in always and rows[axis].null_count() < rows.height)
    ]


def _metric_column(inputs: ReportInputs, metric: str) -> Column:
    units = inputs.summary.filter(pl.col("metric") == metric)["unit"]
    one = display_of(metric, str(units[0]))
    title = display_title(metric, inputs)
    return Column(metric, title, unit=one.unit, decimals=one.decimals, best=one.best)


def _with_counts(rows: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """`n` is the largest number of questions of any metric; `failed` counts failed rollouts."""
    if not metrics:
        return rows
    return rows.with_columns(
        pl.max_horizontal(f"{metric}_n" for metric in metrics).alias("n"),
        pl.min_horizontal(f"{metric}_failed" for metric in metrics).alias("failed"),
    )


def _toy_notes(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    if not inputs.toy_judges or _JUDGED not in {m.partition(JUDGED_BY)[0] for m in metrics}:
        return []
    judges = ", ".join(inputs.toy_judges)
    return [f"The judge is {judges}, a toy: its accuracy only shows that the pipeline works."]


def _question_notes(table: TableData) -> list[str]:
    """Warnings about comparisons of numbers over different numbers of questions."""
    return [
        f"{column.title}: rows are over different numbers of questions."
        for column in table.columns
        if column.kind == "number" and f"{column.key}_n" in table.rows.columns
        if any(
            group[f"{column.key}_n"].drop_nulls().n_unique() > 1
            for group in table.compared_groups()
        )
    ]


def _failed_notes(table: TableData) -> list[str]:
    """Why a number of a scored cell is a dash."""
    notes = []
    for column in table.columns:
        failed = f"{column.key}_failed"
        if column.kind != "number" or failed not in table.rows.columns:
            continue
        lost = table.rows.filter(pl.col(column.key).is_null() & (pl.col(failed) > 0))
        if lost.height:
            rows = "1 row has" if lost.height == 1 else f"{lost.height} rows have"
            notes.append(
                f"{column.title}: {rows} a dash because no sample has a value (up to "
                f"{max(lost[failed])} failed replies or verdicts); `mbt show` of the cell prints "
                "the reasons."
            )
    return notes


def missing_notes(inputs: ReportInputs) -> list[str]:
    """The number of cells that are not finished."""
    count = len(inputs.missing)
    if not count:
        return []
    return [f"{count} cell{' is' if count == 1 else 's are'} not run yet and shown as a dash."]


_RESAMPLES = 1_000
_TIES_NOTE = (
    "†: not significantly different from the best (paired on common questions; exact McNemar for "
    f"0 / 1 values, else paired bootstrap; Holm over the column; {SIGNIFICANT:.0%})."
)

_Scores = Mapping[str, pl.DataFrame]
"""Address to the questions with a value of one metric."""
_Pair = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Values of the best row and of another row on their common questions."""


def _with_ties(table: TableData, inputs: ReportInputs) -> TableData:
    """The table with METRIC_tied: rows that are not significantly different from the best.

    Only metrics that are means over questions have scores per question to test. A breakdown has
    no marks, because a cell has several rows in it.
    """
    if table.rows[ADDRESS].is_duplicated().any():
        return table
    columns = [c for c in table.columns if c.kind == "number" and c.best != "none"]
    rows, is_marked = table.rows, False
    scores = _scores(inputs, [column.key for column in columns])
    for column in columns:
        tied = _tied(table, column, scores.get(column.key, {}))
        is_marked = is_marked or any(tied)
        rows = rows.with_columns(pl.Series(f"{column.key}_tied", tied, dtype=pl.Boolean))
    return replace(table, rows=rows, notes=[*table.notes, *([_TIES_NOTE] if is_marked else [])])


def _scores(inputs: ReportInputs, metrics: Sequence[str]) -> Mapping[str, _Scores]:
    """All metrics in one pass: opening hundreds of files takes longer than reading them."""
    if not inputs.scores.collect_schema().names():
        return {}
    is_wanted = pl.col("metric").is_in(list(metrics)) & pl.col("value").is_not_null()
    frame = inputs.scores.filter(is_wanted).select("metric", ADDRESS, "question_id", "value")
    found: dict[str, dict[str, pl.DataFrame]] = {}
    parts = frame.collect().partition_by("metric", ADDRESS, as_dict=True, include_key=False)
    for (metric, address), part in parts.items():
        found.setdefault(str(metric), {})[str(address)] = part
    return found


def _tied(table: TableData, column: Column, scores: _Scores) -> list[bool]:
    place = list(table.columns).index(column)
    ranks = [row[place].rank for row in formatted_rows(table)]
    addresses = table.rows[ADDRESS].to_list()
    pairs: dict[int, _Pair] = {}
    for group in table.compared_groups():
        best = next((row for row in group["row"] if ranks[row] == "best"), None)
        for row in group["row"]:
            if best is not None and ranks[row] != "best":
                pair = _pair(scores.get(addresses[best]), scores.get(addresses[row]))
                pairs.update({row: pair} if pair else {})
    corrected = dict(zip(pairs, holm(_p_values(list(pairs.values()))), strict=True))
    return [(corrected.get(row) or 0.0) >= SIGNIFICANT for row in range(len(ranks))]


def _pair(best: pl.DataFrame | None, other: pl.DataFrame | None) -> _Pair | None:
    if best is None or other is None:
        return None
    both = best.join(other, on="question_id", suffix="_other").sort("question_id")
    if both.is_empty():
        return None
    return both["value"].to_numpy(), both["value_other"].to_numpy()


def _p_values(pairs: Sequence[_Pair]) -> list[float | None]:
    """One test per pair; the bootstrap tests share their resamples, which makes them cheap."""
    p_values: list[float | None] = [None] * len(pairs)
    resampled: dict[int, Quantity] = {}
    for number, (best, other) in enumerate(pairs):
        if all(np.isin(values, (0.0, 1.0)).all() for values in (best, other)):
            p_values[number] = mcnemar_p(int((best > other).sum()), int((best < other).sum()))
        else:
            resampled[number] = Quantity({"value": best - other}, mean_of_value)
    if resampled:
        drawn = bootstrap(list(resampled.values()), resamples=_RESAMPLES, seed=0)
        for number, differences in zip(resampled, drawn, strict=True):
            p_values[number] = bootstrap_p(differences)
    return p_values
