"""Comparison of two cells on their common questions: differences per metric and per question."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from statistics import NormalDist
from typing import Any

import orjson
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.measures import Measure
from mbt_cli.scores.statistics import (
    Interval,
    Resampled,
    bootstrap,
    equivalence_p,
    holm,
    paired_p,
)
from mbt_cli.scores.summaries import Paired, finite, paired

DIAGNOSTIC = re.compile(
    "unread|not_judged|vote_agreement|_kappa|_same|judge_sens|judge_spec|human_"
)
"""Metrics about the judge itself, which the correction of p values leaves out."""

METRICS = pl.Schema(
    {
        "metric": pl.String(),
        "unit": pl.String(),
        "questions": pl.Int64(),  # with a value in both cells
        "clusters": pl.Int64(),  # of these questions, null if they come in none
        "first": pl.Float64(),
        "second": pl.Float64(),
        "difference": pl.Float64(),  # first - second
        "low": pl.Float64(),  # 95 % interval of the difference
        "high": pl.Float64(),
        "p": pl.Float64(),
        "p_holm": pl.Float64(),  # over all metrics except those about the judge
        "test": pl.String(),  # `mcnemar`, `permutation` or `t`; `z` for numbers of harnesses
        "first_better": pl.Int64(),  # questions with a higher value in the first cell
        "second_better": pl.Int64(),
        "equal": pl.Int64(),
        # two one-sided tests, null unless asked for
        "margin": pl.Float64(),
        "low_90": pl.Float64(),  # 90 % interval of the difference
        "high_90": pl.Float64(),
        "p_equivalent": pl.Float64(),
        "p_equivalent_holm": pl.Float64(),  # over the same metrics as `p_holm`, if tested
    }
)
"""Columns of `Comparison.metrics`."""


QUESTIONS = pl.Schema(
    {
        "metric": pl.String(),
        "question_id": pl.String(),
        "first": pl.Float64(),
        "second": pl.Float64(),
        "difference": pl.Float64(),
    }
)
"""Columns of `Comparison.questions`."""


SIGNIFICANT = 0.05
"""Corrected p values below this are significant."""


@dataclass(frozen=True, slots=True)
class Margins:
    """How far two cells may differ and still be called equivalent, in the units shown.

    Args:
        common: For every metric, None for those in `own` alone.
        own: Metric to its margin.
    """

    common: float | None = None
    own: Mapping[str, float] = field(default_factory=dict)

    def of(self, measure: Measure) -> float | None:
        """The margin in the unit that is stored; percentages are shown in points."""
        found = self.own.get(measure.metric, self.common)
        return found / 100 if found is not None and measure.unit == "percent" else found


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`.

    Args:
        metrics: One row per metric of both cells, columns `METRICS`. The three counts are null for
            a formula of several means (AES, ratios), which has no value per question.
        questions: One row per metric and question, columns `QUESTIONS`, the largest differences
            first within each metric.
    """

    metrics: pl.DataFrame
    questions: pl.DataFrame


def compare(
    first: Sequence[Measure],
    second: Sequence[Measure],
    *,
    resamples: int,
    seed: int,
    margins: Margins = Margins(),
) -> Comparison:
    """Compare two cells metric by metric, paired on their common questions.

    Args:
        first: Measures of one cell.
        second: Measures of the other. Metrics of only one cell are left out.
        resamples: Bootstrap resamples.
        seed: The same seed gives the same intervals.
        margins: Metrics with a margin are tested for equivalence.
    """
    others = {measure.metric: measure for measure in second}
    pairs = [
        (measure, paired(measure, others[measure.metric]))
        for measure in first
        if measure.metric in others
    ]
    pairs = [(measure, pair) for measure, pair in pairs if not pair.questions.is_empty()]
    quantities = [pair.difference for measure, pair in pairs if not pair.is_share(measure)]
    drawn = iter(bootstrap(quantities, resamples=resamples, seed=seed))
    rows = []
    for measure, pair in pairs:
        resampled = None if pair.is_share(measure) else next(drawn)
        tested = _equivalence(measure, pair, resampled, margins.of(measure))
        rows.append({**_row(measure, pair, resampled, seed), **tested})
    for p in ("p", "p_equivalent"):
        asked = [row for row in rows if not DIAGNOSTIC.search(str(row["metric"]))]
        for row, corrected in zip(asked, holm([row[p] for row in asked]), strict=True):
            row[f"{p}_holm"] = corrected
    return Comparison(pl.DataFrame(rows, schema=METRICS), _questions(pairs))


UNPAIRED = "z"
"""The test of two numbers whose questions are not known, from their errors."""


def compare_numbers(first: pl.DataFrame, second: pl.DataFrame) -> Comparison:
    """Compare the numbers of two harnesses, as if their questions were not the same.

    With intervals on both sides, that of the difference is made of them (Newcombe 1998, method 10);
    with standard errors, p is of the normal distribution. Where both cells have answered the same
    questions, both are on the wide side.

    Args:
        first: `rows.SUMMARY` of one cell.
        second: That of the other; metrics of only one cell are left out.
    """
    others = {row["metric"]: row for row in second.iter_rows(named=True)}
    rows = [
        _difference_of_numbers(row, others[row["metric"]])
        for row in first.iter_rows(named=True)
        if row["metric"] in others and row["unit"] == others[row["metric"]]["unit"]
    ]
    for row, corrected in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = corrected
    return Comparison(pl.DataFrame(rows, schema=METRICS), pl.DataFrame(schema=QUESTIONS))


def _difference_of_numbers(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    difference = own["value"] - base["value"]
    low = high = p = None
    if None not in (own["low"], own["high"], base["low"], base["high"]):
        below = hypot(own["value"] - own["low"], base["high"] - base["value"])
        above = hypot(own["high"] - own["value"], base["value"] - base["low"])
        low, high = difference - below, difference + above
    errors = [orjson.loads(row["settings"]).get("error") for row in (own, base)]
    if None not in errors and (error := hypot(*errors)) > 0:
        p = 2 * NormalDist().cdf(-abs(difference) / error)
    return {
        **dict.fromkeys(METRICS),
        "metric": own["metric"],
        "unit": own["unit"],
        "first": own["value"],
        "second": base["value"],
        "difference": difference,
        "low": low,
        "high": high,
        "p": p,
        "test": UNPAIRED,
    }


def _row(measure: Measure, pair: Paired, drawn: Resampled | None, seed: int) -> dict[str, Any]:
    first, second = finite(pair.own.value()), finite(pair.base.value())
    interval = pair.interval(measure, drawn)
    above, below, equal = _better(pair)
    p, test = paired_p(pair.own, pair.base, seed=seed)
    return {
        "metric": measure.metric,
        "unit": measure.unit,
        "questions": pair.own.questions,
        "clusters": pair.clusters,
        "first": first,
        "second": second,
        "difference": None if first is None or second is None else first - second,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "p": p,
        "test": test,
        "first_better": above,
        "second_better": below,
        "equal": equal,
    }


def _equivalence(
    measure: Measure, pair: Paired, drawn: Resampled | None, margin: float | None
) -> dict[str, Json]:
    if margin is None:
        return {"margin": None, "low_90": None, "high_90": None, "p_equivalent": None}

    def interval(level: float) -> Interval | None:
        return pair.interval(measure, drawn, level)

    found = interval(0.9)
    return {
        "margin": margin,
        "low_90": found.low if found else None,
        "high_90": found.high if found else None,
        "p_equivalent": equivalence_p(interval, margin),
    }


def _better(pair: Paired) -> tuple[int, int, int] | tuple[None, None, None]:
    """Number of questions above, below and equal; None if questions have no values."""
    if not pair.has_values():
        return (None, None, None)
    own, base = pair.own.columns["value"], pair.base.columns["value"]
    return int((own > base).sum()), int((own < base).sum()), int((own == base).sum())


def _questions(pairs: Sequence[tuple[Measure, Paired]]) -> pl.DataFrame:
    frames = [
        pair.questions.select(
            pl.lit(measure.metric).alias("metric"),
            "question_id",
            first="own.value",
            second="base.value",
            difference=pl.col("own.value") - pl.col("base.value"),
        ).sort(pl.col("difference").abs(), "question_id", descending=[True, False])
        for measure, pair in pairs
        if pair.has_values()
    ]
    empty = pl.DataFrame(schema=QUESTIONS)
    return pl.concat([empty, *frames])
