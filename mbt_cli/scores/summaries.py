"""Rows of `rows.SUMMARY` from measures: the number, its interval, the paired difference."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import polars as pl

from mbt_cli.core.measures import CLUSTER, Measure
from mbt_cli.scores.statistics import (
    Floats,
    Interval,
    Means,
    Quantity,
    Resampled,
    bootstrap,
    cluster_numbers,
    is_binary,
    paired_p,
    paired_share_interval,
    share_interval,
)

_LIMITS = {
    "percent": (0.0, 1.0),
    "share": (0.0, 1.0),
    "kappa": (-1.0, 1.0),
    "correlation": (-1.0, 1.0),
    **dict.fromkeys(("tokens", "sentences", "requests"), (0.0, math.inf)),
}
"""Units of numbers with limits, to these limits."""
_NO_WIDTH = 1e-6
NO_SPREAD = "every question has the same value"
"""Why a number of several questions has no interval."""
_OTHER_CLUSTER = "other cluster"
_KEYS = ("question_id", "n", "failed", CLUSTER)
_OF_DIFFERENCE = ("baseline", "difference", "difference_low", "difference_high", "p")


@dataclass(frozen=True, slots=True)
class Paired:
    """Two measures on their common questions, in the same order.

    Args:
        questions: `question_id`, the numbers of samples `n` and `n_base`, each column of the two
            measures as `own.X` and `base.X`, and `cluster` where questions come in clusters.
    """

    questions: pl.DataFrame
    own: Quantity
    base: Quantity

    @property
    def clusters(self) -> int | None:
        """Number of clusters of the questions; None if they come in none."""
        return _cluster_count(self.questions)

    def has_values(self) -> bool:
        """Whether each question has a value of its own."""
        return "value" in self.own.columns and "value" in self.base.columns

    @property
    def difference(self) -> Quantity:
        """`own` minus `base`."""
        own, base = self.own, self.base
        columns = {f"own.{name}": values for name, values in own.columns.items()}
        columns |= {f"base.{name}": values for name, values in base.columns.items()}

        def estimate(means: Means) -> Floats:
            mine = own.estimate({name: means[f"own.{name}"] for name in own.columns})
            return mine - base.estimate({name: means[f"base.{name}"] for name in base.columns})

        return Quantity(columns, estimate, own.clusters)

    def is_share(self, measure: Measure) -> bool:
        """Whether the difference is one of shares, whose interval needs no resamples."""
        return self.has_values() and (
            measure.binary or all(_is_zero_one(measure, side) for side in (self.own, self.base))
        )

    def interval(
        self, measure: Measure, drawn: Resampled | None, level: float = 0.95
    ) -> Interval | None:
        """The interval of the difference; `drawn` has its resamples unless it `is_share`."""
        if not self.is_share(measure):
            return None if drawn is None else drawn.interval_of_difference(level)
        n, n_base = (self.questions[name].to_numpy().astype(np.float64) for name in ("n", "n_base"))
        own, base = self.own.columns["value"], self.base.columns["value"]
        found = paired_share_interval(own, base, n, n_base, self.own.clusters, level)
        # of equal replies on both sides only rounding errors may be left
        return found if found.high - found.low > _NO_WIDTH else None


def summarise_all(
    measures: Sequence[tuple[Measure, Measure | None]], *, resamples: int, seed: int
) -> list[dict[str, Any]]:
    """Rows of `rows.SUMMARY` for measures; `by` and `group` are null.

    All measures share their resamples, so ten metrics cost little more than one. `value` and its
    interval are over the measure's own questions: `share_interval` for shares, the studentized
    bootstrap for the rest. `baseline`, `difference`, its interval and `p` are over the questions of
    both sides; see `paired_p`. `settings` names the test and the interval, or why there is none.

    Args:
        measures: Pairs of a measure and the same measure of the baseline cell, if it has one.
        resamples: Number of bootstrap resamples.
        seed: The same seed gives the same intervals, independent of the other measures.
    """
    parts = [_Part(measure, baseline) for measure, baseline in measures]
    quantities = [quantity for part in parts for quantity in part.quantities()]
    drawn = iter(bootstrap(quantities, resamples=resamples, seed=seed))
    return [part.row([next(drawn) for _ in part.quantities()], seed) for part in parts]


def paired(own: Measure, base: Measure) -> Paired:
    """Two measures, joined on the questions for which both have all columns."""
    left = _known(own).select(
        pl.col("question_id", "n", f"^{CLUSTER}$"), pl.exclude(_KEYS).name.prefix("own.")
    )
    right = _known(base).select(
        pl.col("question_id", "n"),
        pl.col(f"^{CLUSTER}$").alias(_OTHER_CLUSTER),
        pl.exclude(_KEYS).name.prefix("base."),
    )
    both = left.join(right, on="question_id", suffix="_base")
    if _OTHER_CLUSTER in both.columns:  # one side may have been scored without clusters
        names = [name for name in (CLUSTER, _OTHER_CLUSTER) if name in both.columns]
        both = both.with_columns(pl.coalesce(names).alias(CLUSTER)).drop(_OTHER_CLUSTER)
    both = both.drop_nulls().sort("question_id")
    return Paired(both, _quantity(own, both, "own."), _quantity(base, both, "base."))


def finite(value: float) -> float | None:
    """The value, or None if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None


class _Part:
    """A measure and its baseline: the quantities to resample, and the row made of them."""

    def __init__(self, measure: Measure, baseline: Measure | None) -> None:
        self.measure = measure
        known = _known(measure)
        self.n, self.clusters = len(known), _cluster_count(known)
        self.largest_cluster = _largest_cluster(known)
        self.samples = known["n"].to_numpy().astype(np.float64)
        self.own = _quantity(measure, known, "") if self.n else None
        has_pair = baseline is not None and measure.interval is None
        self.pair = paired(measure, baseline) if baseline is not None and has_pair else None
        if self.pair is not None and self.pair.questions.is_empty():
            self.pair = None

    def quantities(self) -> list[Quantity]:
        """What is resampled: nothing for shares."""
        if self.own is None or self._is_share():
            return []
        if self.pair is None:
            return [] if self.measure.interval else [self.own]
        return [self.own, self.pair.difference]

    def row(self, drawn: Sequence[Resampled], seed: int) -> dict[str, Any]:
        settings = dict(self.measure.settings)
        value = interval = None
        if self.own is not None:
            value = finite(self.own.value())
        if self.own is not None and value is not None:
            interval = self._interval(drawn, settings)
        if self.clusters is not None:
            settings |= {"clusters": self.clusters, "largest_cluster": self.largest_cluster}
        row = {
            "metric": self.measure.metric,
            "value": value,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "n": self.n,
            "failed": int(self.measure.questions["failed"].sum()),
            "unit": self.measure.unit,
            **self._difference(drawn, settings, seed),
            "by": None,
            "group": None,
        }
        return {**row, "settings": orjson.dumps(settings, option=orjson.OPT_SORT_KEYS).decode()}

    def _is_share(self) -> bool:
        own = self.own
        if own is None or list(own.columns) != ["value"]:
            return False
        return self.measure.binary or _is_zero_one(self.measure, own)

    def _unit(self) -> str:
        return "question" if self.clusters is None else "cluster"

    def _interval(
        self, resampled: Sequence[Resampled], settings: dict[str, Any]
    ) -> Interval | None:
        assert self.own is not None
        if self.measure.interval is not None:
            found = self.measure.interval(self.own.clusters)
            if isinstance(found, str):
                settings["no_interval"] = found
                return None
            return Interval(*found)
        if self._is_share():
            settings["interval"] = "wilson"
            return share_interval(self.own.columns["value"], self.samples, self.own.clusters)
        if self.measure.items is not None:
            settings["interval"] = "wilson"
            return self._interval_of_items(*self.measure.items)
        if "no_interval" in settings or not resampled:
            return None
        drawn = resampled[0]
        interval = drawn.interval_by_log() if self.measure.by_log else drawn.interval()
        if drawn.undefined:
            settings["undefined_resamples"] = round(drawn.undefined, 4)
        if interval is None:
            settings["no_interval"] = why_no_interval(drawn, self._unit())
        limits = _LIMITS.get(self.measure.unit) or _own_limits(self.measure)
        return interval.within(*limits) if interval and limits else interval

    def _interval_of_items(self, right: str, whole: str) -> Interval:
        assert self.own is not None
        items = self.own.columns[whole]
        counts = np.rint(items).astype(np.int64)
        clusters = self.own.clusters
        of = np.arange(len(items)) if clusters is None else clusters
        shares = np.repeat(self.own.columns[right] / items, counts)
        return share_interval(shares, np.repeat(self.samples, counts), np.repeat(of, counts))

    def _difference(
        self, drawn: Sequence[Resampled], settings: dict[str, Any], seed: int
    ) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(_OF_DIFFERENCE)
        if self.pair is None:
            return row
        row["baseline"] = finite(self.pair.base.value())
        difference = finite(self.pair.difference.value())
        if difference is None:
            return row
        settings["paired_questions"] = self.pair.own.questions
        if (clusters := self.pair.clusters) is not None:
            settings["paired_clusters"] = clusters
        p, settings["test"] = paired_p(self.pair.own, self.pair.base, seed=seed)
        row |= {"difference": difference, "p": p}
        resampled = drawn[1] if drawn else None
        if resampled and resampled.undefined:
            settings["undefined_resamples_of_difference"] = round(resampled.undefined, 4)
        if interval := self.pair.interval(self.measure, resampled):
            row |= {"difference_low": interval.low, "difference_high": interval.high}
        else:
            settings["no_interval_of_difference"] = (
                why_no_interval(resampled, self._unit()) if resampled else NO_SPREAD
            )
        return row


def _own_limits(measure: Measure) -> tuple[float, float] | None:
    """The limits that a measure states in its settings, such as the fewest and the most points."""
    least, most = (measure.settings.get(name) for name in ("least", "most"))
    return None if least is None or most is None else (float(least), float(most))


def why_no_interval(drawn: Resampled, unit: str = "question") -> str:
    """Why a number has no interval, in words."""
    if drawn.size < 2:
        return f"one {unit}"
    if np.isfinite(drawn.error):
        return f"every {unit} has the same value"
    return f"undefined with a few other {unit}s"


def _is_zero_one(measure: Measure, quantity: Quantity) -> bool:
    """Whether each question has a 0 or a 1, as in `pass@1` with one sample."""
    values = quantity.columns["value"]
    return measure.unit == "percent" and is_binary(values)


def _cluster_count(questions: pl.DataFrame) -> int | None:
    return questions[CLUSTER].n_unique() if CLUSTER in questions.columns else None


def _largest_cluster(questions: pl.DataFrame) -> float | None:
    """Share of the questions that the largest cluster holds, rounded to 3 digits."""
    if CLUSTER not in questions.columns or questions.is_empty():
        return None
    counts: list[int] = questions[CLUSTER].value_counts()["count"].to_list()
    return round(max(counts) / len(questions), 3)


def _known(measure: Measure) -> pl.DataFrame:
    """The measure's columns for questions with at least one value, sorted by id."""
    columns = [name for name in measure.questions.columns if name not in _KEYS]
    return (
        measure.questions.filter(pl.any_horizontal(pl.col(columns).is_not_null()))
        .sort("question_id")
        .drop("failed")
    )


def _quantity(measure: Measure, questions: pl.DataFrame, prefix: str) -> Quantity:
    columns = {
        name.removeprefix(prefix): questions[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        for name in questions.columns
        if name not in _KEYS and name.startswith(prefix)
    }
    has_clusters = CLUSTER in questions.columns
    clusters = cluster_numbers(questions[CLUSTER]) if has_clusters else None
    return Quantity(columns, measure.estimate, clusters)
