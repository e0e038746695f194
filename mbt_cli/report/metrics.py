"""Tables with one row per scored cell and one column per metric, with marks and notes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.measures import CLUSTER, JUDGED_BY, mean_of_value
from mbt_cli.core.number_text import number_text
from mbt_cli.core.tables import STAGE, Column, ReportInputs, TableData
from mbt_cli.report.formats import formatted_rows
from mbt_cli.report.notes import (
    ADDRESS,
    bounds_note,
    cluster_notes,
    empty_note,
    interval_notes,
    question_scores,
    with_bounds,
    with_missing,
)
from mbt_cli.report.seeds import SEED, clusters_of, seed_values
from mbt_cli.scores.comparison import DIAGNOSTIC, SIGNIFICANT
from mbt_cli.scores.seeds import Estimate, difference
from mbt_cli.scores.statistics import (
    Clusters,
    Quantity,
    is_binary,
    not_worse_than_best,
    paired_p,
    smallest_difference,
)

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


_DISPLAYS = {
    "exact_match": Display("exact match"),
    "substring_match": Display("substring match"),
    "f1_score": Display("F1"),
    "official_exact_match": Display("official EM"),
    "official_f1": Display("official F1"),
    "containment": Display("whole-word match"),
    "math_match": Display("math match"),
    "judge_accuracy": Display("judge accuracy"),
    "judge_accuracy_corrected": Display("corrected accuracy"),
    "answer_rate": Display("answer rate"),
    "tokens": Display("mean tokens", "tokens", 0, "low"),
    "degeneration": Display("cut at the limit", best="low"),
    "degeneration_loops": Display("ends in a loop", best="low"),
    "empty_replies": Display("empty replies", best="low"),
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
    shown = inputs.summary.filter(pl.col("by").is_null() if by is None else pl.col("by") == by)
    scores = question_scores(inputs, metrics if by is None else ())
    if metrics:
        n = pl.max_horizontal(f"{metric}_n" for metric in metrics)
        rows = with_missing(rows.with_columns(n=n), scores, metrics)
        rows = with_bounds(rows, scores, _shares(shown, metrics))
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
            *(Column(axis, axis, kind="label") for axis in labels),
            *(_metric_column(inputs, metric) for metric in metrics),
            *(counts if metrics else []),
        ],
        rows=rows,
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
        *([_SEEDS_NOTE] if has_seeds else []),
        *cluster_notes(inputs.summary, metrics),
        *_toy_notes(inputs, metrics),
        *(inputs.related_judges if _is_judged(inputs, metrics) else ()),
        *notes,
        *_question_notes(table),
        *_failed_notes(table),
        *(empty_note(inputs.cells) if metrics else []),
        *bounds_note(table),
        *interval_notes(shown, table.columns),
        *missing_notes(inputs),
    ]
    return _with_ties(replace(table, notes=all_notes), scores)


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
            **axes_of(address),
        }
        for address in inputs.missing
    ]
    schema = {ADDRESS: pl.String(), **dict.fromkeys(axes, pl.String())}
    rows = pl.concat([rows, pl.DataFrame(missing, schema=schema)], how="diagonal")
    return _sorted_by_axes(rows, axes)


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


def _shares(summary: pl.DataFrame, metrics: Sequence[str]) -> list[str]:
    """The metrics that are shares of samples, except those about the judge and those of no rank."""
    by_share = summary.filter(pl.col("settings").str.json_path_match("$.interval") == "wilson")
    found = set(by_share["metric"])
    return [
        metric
        for metric in metrics
        if metric in found and display_of(metric).best != "none" and not DIAGNOSTIC.search(metric)
    ]


def _toy_notes(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    if not inputs.toy_judges or _JUDGED not in {m.partition(JUDGED_BY)[0] for m in metrics}:
        return []
    judges = ", ".join(inputs.toy_judges)
    return [f"The judge is {judges}, a toy: its accuracy only shows that the pipeline works."]


_BY_JUDGE = re.compile(
    r"(judge|rrp|mqi)_|mqi$|answer_hit(_unread|_not_judged)?$|answer_inclusive_errors"
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


_PATTERNS = 4_000
_LEAST_SHARED = 0.5
"""Least share of a row's questions that all rows have, for a test on these questions."""
_TIES_NOTE = (
    f"†: not significantly different from the best at {SIGNIFICANT:.0%} for all pairs of rows "
    "together"
)
_TEST = "max-t, and exact McNemar or a permutation test against the best"
_SEEDS_TEST = "Student's t over seeds and questions, Bonferroni"
_FEW_SHARED_TEST = "rows share few questions: Student's t on those of each pair, Bonferroni"
_SMALLEST_NOTE = (
    "Smallest difference from the best that these questions can show (paired test of two rows at "
    f"{SIGNIFICANT:.0%}, 80 % power)"
)

_Scores = Mapping[str, pl.DataFrame]
"""Address to the questions with a value of one metric, for each seed."""


def _with_ties(table: TableData, scores: pl.DataFrame) -> TableData:
    """The table with METRIC_tied, and the smallest differences that its questions can show.

    METRIC_tied marks rows that are not significantly different from the best. Only metrics that
    are means over questions have scores per question to test. A breakdown has no marks, because a
    cell has several rows in it.
    """
    if table.rows[ADDRESS].is_duplicated().any():
        return table
    columns = [c for c in table.columns if c.kind == "number" and c.best != "none"]
    rows, tests, shown = table.rows, dict[str, None](), []
    values = _values(scores)
    for column in columns:
        found = _against_best(table, column, values.get(column.key, {}))
        tests |= dict.fromkeys(found.tests if any(found.tied) else ())
        rows = rows.with_columns(pl.Series(f"{column.key}_tied", found.tied, dtype=pl.Boolean))
        if found.smallest:
            shown.append(_range_text(column, found.smallest))
    notes = [*table.notes]
    if tests:
        notes.append(f"{_TIES_NOTE} ({'; '.join(tests)}).")
    if shown:
        notes.append(f"{_SMALLEST_NOTE}: {'; '.join(shown)}.")
    return replace(table, rows=rows, notes=notes)


def _range_text(column: Column, found: Sequence[float]) -> str:
    ends = [number_text(f(found), unit=column.unit, decimals=column.decimals) for f in (min, max)]
    unit = " points" if column.unit == "percent" else ""
    return f"{column.title} {' to '.join(dict.fromkeys(ends))}{unit}"


def _values(scores: pl.DataFrame) -> Mapping[str, _Scores]:
    """The values of each metric and address."""
    found: dict[str, dict[str, pl.DataFrame]] = {}
    known = scores.filter(pl.col("value").is_not_null()).select(
        "metric", ADDRESS, SEED, "question_id", "value", CLUSTER
    )
    parts = known.partition_by("metric", ADDRESS, as_dict=True, include_key=False)
    for (metric, address), part in parts.items():
        found.setdefault(str(metric), {})[str(address)] = part
    return found


@dataclass(frozen=True, slots=True)
class _AgainstBest:
    """Each row of a column against the best of its group.

    Args:
        tied: Whether the row has the †.
        smallest: For each row but the best, the smallest difference that can be found.
        tests: The tests that were used.
    """

    tied: list[bool]
    smallest: list[float]
    tests: list[str]


def _against_best(table: TableData, column: Column, scores: _Scores) -> _AgainstBest:
    place = list(table.columns).index(column)
    ranks = [row[place].rank for row in formatted_rows(table)]
    addresses = table.rows[ADDRESS].to_list()
    found = _AgainstBest([False] * len(ranks), [], [])
    for group in table.compared_groups():
        rows = [row for row in group["row"] if addresses[row] in scores]
        best = [row for row in rows if ranks[row] == "best"]
        if not best or len(rows) < 2:
            continue
        parts = {row: scores[addresses[row]] for row in rows}
        others = [row for row in rows if row not in best]
        pairs = {row: _Pair.of(parts[best[0]], parts[row]) for row in others}
        found.smallest.extend(d for pair in pairs.values() if (d := pair.smallest_difference()))
        has_seeds = any(part[SEED].n_unique() > 1 for part in parts.values())
        if has_seeds or not _share_most(list(parts.values())):
            # all pairs count, since the best row is not known before
            times = len(rows) * (len(rows) - 1) / 2
            p_values = {row: pair.p_by_t(times) for row, pair in pairs.items()}
            found.tests.append(_SEEDS_TEST if has_seeds else _FEW_SHARED_TEST)
        else:
            values, clusters = _common(list(parts.values()))
            can_be_best = not_worse_than_best(
                -values if column.best == "low" else values,
                resamples=_PATTERNS,
                seed=0,
                clusters=clusters,
            )
            # what `mbt compare` of the two cells says counts as well
            p_values = {
                row: None if is_tied else pairs[row].p()
                for row, is_tied in zip(rows, can_be_best, strict=True)
                if row in pairs
            }
            found.tests.append(_TEST)
        for row, p in p_values.items():
            ahead = pairs[row].difference() * (-1 if column.best == "low" else 1)
            # on the questions of the pair, the row may be the better one
            found.tied[row] = p is None or p >= SIGNIFICANT or ahead < 0
    return found


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two rows on the questions that both have.

    Args:
        first: Shape (seeds, questions).
        second: Shape (other seeds, questions).
        clusters: The cluster of each question; None if questions are independent.
        drawn: For each side, whether it is of trainings, whose seeds stand for others.
    """

    first: npt.NDArray[np.float64]
    second: npt.NDArray[np.float64]
    clusters: Clusters | None
    drawn: tuple[bool, bool]

    @classmethod
    def of(cls, first: pl.DataFrame, second: pl.DataFrame) -> "_Pair":
        wide = [seed_values(part) for part in (first, second)]
        both = wide[0].select("question_id").join(wide[1], on="question_id", how="semi")
        both = both.sort("question_id")
        values = [
            both.join(frame, on="question_id", how="left", maintain_order="left")
            .drop("question_id")
            .to_numpy()
            .T
            for frame in wide
        ]
        drawn = (first[SEED].null_count() == 0, second[SEED].null_count() == 0)
        return cls(values[0], values[1], clusters_of(both["question_id"], [first, second]), drawn)

    @property
    def units(self) -> int:
        """Number of clusters, else of questions."""
        return self.first.shape[1] if self.clusters is None else int(self.clusters.max()) + 1

    def difference(self) -> float:
        """The mean of the first minus that of the second; NaN without common questions."""
        return float(self.first.mean() - self.second.mean()) if self.first.size else math.nan

    def _estimate(self) -> Estimate:
        return difference(self.first, self.second, self.clusters, drawn=self.drawn)

    def p(self) -> float | None:
        """P value of rows with one seed, the one of `mbt compare`."""
        if self.units < 2:
            return None
        first, second = (_mean_of(own[0], self.clusters) for own in (self.first, self.second))
        return paired_p(first, second, seed=0)[0]

    def p_by_t(self, times: float) -> float | None:
        """P value by Student's t over seeds and questions, times the number of tests."""
        p = self._estimate().p() if self.units > 1 else None
        return None if p is None else p * times

    def smallest_difference(self) -> float | None:
        """The true difference that the pair's own test finds with 80 % power; None below 2."""
        if self.units < 2:
            return None
        sides = (self.first, self.second)
        is_mcnemar = self.clusters is None and all(len(s) == 1 and is_binary(s) for s in sides)
        found = self._estimate()
        degrees = found.degrees if found.error > 0 else self.units - 1
        pairs = self.units if is_mcnemar else None
        return smallest_difference(found.error, degrees, pairs=pairs)


def _mean_of(values: npt.NDArray[np.float64], clusters: Clusters | None) -> Quantity:
    return Quantity({"value": values}, mean_of_value, clusters)


def _share_most(parts: Sequence[pl.DataFrame]) -> bool:
    """Whether the questions that all rows have are enough to test them on these alone."""
    rows = pl.concat([part.select("question_id") for part in parts]).group_by("question_id").len()
    shared = (rows["len"] == len(parts)).sum()
    return shared >= max(2, _LEAST_SHARED * max(part.height for part in parts))


def _common(
    parts: Sequence[pl.DataFrame],
) -> tuple[npt.NDArray[np.float64], Clusters | None]:
    """Values of each row on the questions that all have, shape (rows, questions), and clusters."""
    both = parts[0].select("question_id", pl.col("value").alias("0"))
    for number, part in enumerate(parts[1:], start=1):
        own = part.select("question_id", pl.col("value").alias(str(number)))
        both = both.join(own, on="question_id")
    both = both.sort("question_id")
    clusters = clusters_of(both["question_id"], parts)
    return both.drop("question_id").to_numpy().T, clusters
