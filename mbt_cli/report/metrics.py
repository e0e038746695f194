"""Tables with one row per scored cell and one column per metric, with marks and notes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.measures import JUDGED_BY, METADATA
from mbt_cli.core.tables import STAGE, Column, ReportInputs, TableData, beside_benchmarks
from mbt_cli.report.layout import sorted_by
from mbt_cli.report.means import benchmark_means, mean_notes, with_means
from mbt_cli.report.notes import (
    ADDRESS,
    baselines,
    bounds_note,
    cluster_notes,
    empty_note,
    interval_notes,
    question_scores,
    unanswered_note,
    with_bounds,
    with_missing,
)
from mbt_cli.report.ties import mark_notes, marked
from mbt_cli.scores.comparison import DIAGNOSTIC

_SEEDS_NOTE = (
    "Means over the seeds of a training; the intervals count seeds and questions "
    "(`mbt help metrics`)."
)
_JUDGED = "judge_accuracy"
_COUNTS_NOTE = (
    "n: questions; failed: samples without a value (no reply, unread verdict) in the column with "
    "most of them."
)


@dataclass(frozen=True, slots=True)
class Display:
    """How a metric is shown: heading, unit, decimals, and which end is better."""

    title: str
    unit: str = "percent"
    decimals: int = 1
    best: Literal["high", "low", "none"] = "high"
    is_change: bool = False
    """Whether it is a change from the baseline, so that the baseline's own is 0 by definition."""


_DISPLAYS = {
    "exact_match": Display("exact match"),
    "substring_match": Display("substring match"),
    "f1_score": Display("F1"),
    "official_exact_match": Display("official EM"),
    "official_f1": Display("official F1"),
    "containment": Display("whole-word match"),
    "math_match": Display("math match"),
    "verified": Display("verified"),
    "verified_loose": Display("verified (loose)"),
    "instruction_accuracy": Display("instructions"),
    "instruction_accuracy_loose": Display("instructions (loose)"),
    "judge_accuracy": Display("judge accuracy"),
    "judge_accuracy_corrected": Display("corrected accuracy"),
    "points": Display("points", "points", 2),
    "points_best": Display("points, best run", "points", 2),
    "points_worst": Display("points, worst run", "points", 2),
    "points_unread": Display("unread (points)", best="low"),
    "answer_rate": Display("answer rate"),
    "tokens": Display("mean tokens", "tokens", 0, "low"),
    "answer_tokens": Display("tokens of the answer", "tokens", 0, "low"),
    "steps": Display("requests", "requests", 1, "low"),
    "steps_unread": Display("unread requests", "requests", 2, "low"),
    "steps_failed": Display("failed requests", "requests", 2, "low"),
    "degeneration": Display("cut at the limit", best="low"),
    "degeneration_loops": Display("ends in a loop", best="low"),
    "empty_replies": Display("empty replies", best="low"),
    "tokens_per_correct": Display("tokens per correct", "tokens", 0, "low"),
    "aes": Display("AES", "index", 3, is_change=True),
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
    "features_words": Display("words", "words", 0, "none"),
    "features_steps": Display("paragraphs", "paragraphs", 1, "none"),
    "features_hedges": Display("hedges per 100 words", "per 100 words", 2, "none"),
    "features_turns": Display("turns per 100 words", "per 100 words", 2, "none"),
    "features_reasons": Display("reasons per 100 words", "per 100 words", 2, "none"),
    "features_numbers": Display("numbers per 100 words", "per 100 words", 2, "none"),
    "features_questions": Display("questions per 100 words", "per 100 words", 2, "none"),
    "brier": Display("Brier", "index", 4, "low"),
    "brier_unread": Display("unparsed (beliefs)", best="low"),
    "log_loss": Display("log loss", "nats", 3, "low"),
    "belief_accuracy": Display("belief accuracy"),
    "calibration_ece": Display("ECE", "index", 4, "low"),
    "calibration_reliability": Display("reliability", "index", 4, "low"),
    "calibration_resolution": Display("resolution", "index", 4),
    "calibration_uncertainty": Display("uncertainty", "index", 4, "none"),
    "calibration_within": Display("within bins", "index", 4, "none"),
    "martingale": Display("martingale slope", "slope", 3, "none"),
    "martingale_instrument": Display("slope by instrument", "slope", 3, "none"),
    "martingale_change": Display("mean change", "index", 3, "none"),
    "martingale_loss": Display("martingale loss", "index", 3, "low"),
    "sycophancy_followed": Display("opinion followed", "index", 3, "low", is_change=True),
    "sycophancy_shift": Display("shift to the opinion", "index", 3, "low", is_change=True),
    "sycophancy_quality_lost": Display("quality lost", "index", 4, "low", is_change=True),
    "judge_vote_agreement": Display("votes agree", best="none"),
}
_OF_POINTS = re.compile(
    r"points(?:_(?P<vote>median|min|max)_vote)?(?:_at_least_(?P<least>[\d.]+)|(?P<rest>_best|_worst))?"
)
METRIC_NAMES = frozenset(_DISPLAYS)
"""Metrics with a heading of their own."""
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
    if points := _OF_POINTS.fullmatch(metric):
        vote = f" ({points['vote']} vote)" if points["vote"] else ""
        if points["least"]:
            return Display(f"{points['least']} points or more{vote}")
        one = _DISPLAYS[f"points{points['rest'] or ''}"]
        return replace(one, title=f"{one.title}{vote}")
    decimals = {"percent": 1, "tokens": 0}.get(unit, 3)
    return Display(metric.replace("_", " "), unit, decimals, "none")


def display_here(inputs: ReportInputs, metric: str) -> Display:
    """How a metric that some cell has is shown: an unlisted one in the unit of its numbers."""
    units = inputs.summary.filter(pl.col("metric") == metric)["unit"]
    return display_of(metric, str(units[0])) if len(units) else display_of(metric)


def harness_metrics(inputs: ReportInputs) -> list[str]:
    """The names of the numbers of harnesses."""
    is_own = pl.col("settings").str.json_path_match("$.harness").is_not_null()
    return inputs.summary.filter(is_own)["metric"].unique(maintain_order=True).to_list()


def _is_among(addresses: Sequence[str]) -> pl.Expr:
    return pl.col(ADDRESS).is_in(pl.Series(addresses, dtype=pl.String))


def harness_cells(inputs: ReportInputs) -> list[str]:
    """The addresses of the cells of harnesses."""
    is_own = pl.col("settings").str.json_path_match("$.harness").is_not_null()
    return inputs.summary.filter(is_own)[ADDRESS].unique(maintain_order=True).to_list()


def display_title(metric: str, inputs: ReportInputs) -> str:
    """The heading of a metric; the accuracy by a toy judge is labelled as such."""
    name, _, judge = metric.partition(JUDGED_BY)
    if name == _JUDGED and (judge in inputs.toy_judges if judge else inputs.toy_judges):
        return "toy judge's accuracy" + (f" ({judge})" if judge else "")
    return display_of(metric).title


def present(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    """The metrics that at least one cell has; a metric of several judge models, once per model.

    A kind of metrics over k samples, such as `pass_at_k`, stands for those of every k.
    """
    found = inputs.summary["metric"].unique(maintain_order=True).to_list()
    return list(dict.fromkeys(n for metric in metrics for n in found if is_named(n, metric)))


def is_named(name: str, metric: str) -> bool:
    """Whether a table that names a metric shows the one with this name.

    Example:
        >>> is_named("pass@4", "pass_at_k"), is_named("f1_score_avg@4", "avg_at_k")
        (True, True)
        >>> is_named("judge_accuracy:gpt-oss-20b", "judge_accuracy"), is_named("aes", "mqi")
        (True, False)
    """
    kind = metric.removesuffix("_at_k")
    is_at_k = kind != metric and re.fullmatch(rf"(?:.+_)?{re.escape(kind)}(?:_\w+)?@\d+", name)
    return name == metric or name.startswith(f"{metric}{JUDGED_BY}") or bool(is_at_k)


def metric_table(
    inputs: ReportInputs,
    *,
    name: str,
    title: str,
    metrics: Sequence[str],
    notes: Sequence[str] = (),
    by: str | None = None,
    over_benchmarks: bool = False,
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
        over_benchmarks: Whether the last rows are means over benchmarks, where there are several.
    """
    shown = inputs.summary.filter(pl.col("by").is_null() if by is None else pl.col("by") == by)
    known = set(shown["metric"])
    metrics = [metric for metric in present(inputs, metrics) if by is None or metric in known]
    rows = cell_rows(inputs, metrics) if by is None else _group_rows(inputs, metrics, by)
    scores = question_scores(inputs, metrics if by is None else ())
    if metrics:
        n = pl.max_horizontal(f"{metric}_n" for metric in metrics)
        rows = with_missing(rows.with_columns(n=n), scores, metrics)
        rows = with_bounds(rows, scores, _shares(shown, metrics))
    is_baseline = pl.col(ADDRESS).is_in(baselines(inputs))
    changes = [metric for metric in metrics if display_of(metric).is_change]
    if rows.filter(is_baseline).height:
        rows = rows.with_columns(is_baseline.alias(f"{metric}_fixed") for metric in changes)
    axes = [*inputs.axes, *([by] if by else [])]
    labels = varying(rows, axes, always=("model",))
    within = {"benchmark", "split", by, *(["model"] if "variant" in labels else [])}
    counts = [Column("n", "n", decimals=0), Column("failed", "failed", decimals=0)]
    if has_seeds := "seeds" in inputs.summary.columns:
        rows = rows.join(_seed_counts(inputs), on=ADDRESS, how="left", maintain_order="left")
        counts.insert(0, Column("seeds", "seeds", decimals=0))
    table = TableData(
        name=name,
        title=title,
        columns=[
            *(Column(axis, axis.removeprefix(METADATA), kind="label") for axis in labels),
            *(metric_column(inputs, metric) for metric in metrics),
            *(counts if metrics else []),
        ],
        rows=rows,
        compared_within=[axis for axis in labels if axis in within],
    )
    constant = [
        f"{axis.removeprefix(METADATA)} {rows[axis][0]}"
        for axis in axes
        if axis not in labels and rows.height and rows[axis][0]
    ]
    marks = marked(table, scores)
    means = None
    if over_benchmarks:
        scored = marks.table.rows.filter(~_is_among(harness_cells(inputs)))
        of_scores = replace(marks.table, rows=scored)
        means = benchmark_means(of_scores, scores, shares_of_samples(shown))
    fixed = ", ".join(c.title for c in table.columns if f"{c.key}_fixed" in rows)
    estimated = shown.filter(~(pl.col("metric").is_in(changes) & is_baseline))
    all_notes = [
        *([f"All rows: {', '.join(constant)}."] if constant else []),
        *([_COUNTS_NOTE] if metrics else []),
        *([_SEEDS_NOTE] if has_seeds else []),
        *cluster_notes(inputs.summary, metrics),
        *_toy_notes(inputs, metrics),
        *(inputs.related_judges if _is_judged(inputs, metrics) else ()),
        *notes,
        *_question_notes(table),
        *_failed_notes(table),
        *(empty_note(inputs.cells) if metrics else []),
        *unanswered_note(rows),
        *bounds_note(table),
        *([f"{fixed} of the baseline itself: 0 by definition, not ranked."] if fixed else []),
        *interval_notes(estimated, table.columns),
        *missing_notes(inputs),
        *mean_notes(means, seeds=has_seeds),
        *mark_notes(marks, means),
    ]
    return with_means(replace(marks.table, notes=all_notes), means)


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
        {
            ADDRESS: address,
            **dict.fromkeys(axes),
            STAGE: address.partition("/")[0],
            **(beside_benchmarks if "harness" not in axes else dict)(axes_of(address)),
        }
        for address in inputs.missing
    ]
    schema = {ADDRESS: pl.String(), **dict.fromkeys(axes, pl.String())}
    rows = pl.concat([rows, pl.DataFrame(missing, schema=schema)], how="diagonal")
    return sorted_by(rows, axes)


def _seed_counts(inputs: ReportInputs) -> pl.DataFrame:
    """Number of seeds of each row."""
    return inputs.summary.group_by(ADDRESS).agg(pl.col("seeds").max())


def _group_rows(inputs: ReportInputs, metrics: Sequence[str], by: str) -> pl.DataFrame:
    """One row per scored cell and group of the breakdown `by`, whose column follows the axes."""
    parts = inputs.summary.filter(pl.col("by") == by).with_columns(pl.col("group").alias(by))
    rows = parts.select(ADDRESS, *inputs.axes, by).unique(maintain_order=True)
    rows = _with_metrics(rows, parts, metrics, [ADDRESS, by])
    order = {"easy": "0", "medium": "1", "hard": "2"}
    rows = rows.sort(pl.col(by).replace(order), maintain_order=True)
    return sorted_by(rows, [*inputs.axes, by])


def _with_metrics(
    rows: pl.DataFrame, summary: pl.DataFrame, metrics: Sequence[str], keys: Sequence[str]
) -> pl.DataFrame:
    parts = {"": "value", "_low": "low", "_high": "high", "_n": "n", "_failed": "failed"}
    for metric in metrics:
        own = summary.filter(pl.col("metric") == metric)
        values = [pl.col(name).alias(f"{metric}{suffix}") for suffix, name in parts.items()]
        rows = rows.join(own.select(*keys, *values), on=list(keys), how="left")
    return rows


def varying(rows: pl.DataFrame, axes: Sequence[str], *, always: Sequence[str] = ()) -> list[str]:
    """Axes in which rows differ, and those of `always` that some row has."""
    return [
        axis
        for axis in axes
        if rows[axis].n_unique() > 1 or (axis in always and rows[axis].null_count() < rows.height)
    ]


def metric_column(inputs: ReportInputs, metric: str) -> Column:
    """The column of a metric that some cell has."""
    one = display_here(inputs, metric)
    title = display_title(metric, inputs)
    return Column(metric, title, unit=one.unit, decimals=one.decimals, best=one.best)


def _shares(summary: pl.DataFrame, metrics: Sequence[str]) -> list[str]:
    """The metrics that are shares of samples, except those about the judge and those of no rank."""
    found = shares_of_samples(summary)
    return [
        metric
        for metric in metrics
        if metric in found and display_of(metric).best != "none" and not DIAGNOSTIC.search(metric)
    ]


def shares_of_samples(summary: pl.DataFrame) -> set[str]:
    """The metrics that are shares of samples."""
    by_share = summary.filter(pl.col("settings").str.json_path_match("$.interval") == "wilson")
    return set(by_share["metric"])


def _toy_notes(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    if not inputs.toy_judges or _JUDGED not in {m.partition(JUDGED_BY)[0] for m in metrics}:
        return []
    judges = ", ".join(inputs.toy_judges)
    return [f"The judge is {judges}, a toy: its accuracy only shows that the pipeline works."]


_BY_JUDGE = re.compile(
    r"(judge|rrp|mqi|points)_|(mqi|points)$|answer_hit(_unread|_not_judged)?$|answer_inclusive_errors"
)
"""Metrics that are computed from verdicts; others name them in their setting `accuracy`."""


def _is_judged(inputs: ReportInputs, metrics: Sequence[str]) -> bool:
    """Whether one of the metrics is computed from verdicts."""
    if any(_BY_JUDGE.match(metric) or JUDGED_BY in metric for metric in metrics):
        return True
    settings = inputs.summary.filter(pl.col("metric").is_in(list(metrics)))["settings"]
    accuracies = settings.str.json_path_match("$.accuracy")
    return _JUDGED in accuracies.to_list()


def _question_notes(table: TableData) -> list[str]:
    """Warnings about numbers over other questions than those of other rows or columns."""
    uneven, fewer = [], []
    for column in table.columns:
        key = f"{column.key}_n"
        if column.kind != "number" or key not in table.rows.columns:
            continue
        if any(group[key].drop_nulls().n_unique() > 1 for group in table.compared_groups()):
            uneven.append(column.title)
        elif (found := table.rows.filter(pl.col(key) < pl.col("n"))).height:
            fewer.append(f"{column.title} {min(found[key])}")
    return [
        *(
            [f"{', '.join(uneven)}: rows are over different numbers of questions."]
            if uneven
            else []
        ),
        *([f"Over fewer questions than n: {', '.join(fewer)}."] if fewer else []),
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
    count, seeds = len(inputs.missing), inputs.missing_seeds
    notes = []
    if count:
        are = " is" if count == 1 else "s are"
        notes.append(f"{count} cell{are} not run yet and shown as a dash.")
    if seeds:
        are = "1 seed is" if seeds == 1 else f"{seeds} seeds are"
        notes.append(f"{are} not run yet: some means are over fewer seeds.")
    return notes
