"""Paired differences of every two methods of a study, on each benchmark and over all, for its page.

The numbers are those of `mbt compare`; only above 1,000 questions, intervals that it takes from the
bootstrap are Student's t, to which the bootstrap converges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.measures import CLUSTER, Measure, mean_of_value
from mbt_cli.core.number_text import number_text
from mbt_cli.core.tables import Column, ReportInputs
from mbt_cli.report.layout import group_labels
from mbt_cli.report.means import BENCHMARK
from mbt_cli.report.metrics import metric_column, shares_of_samples, varying
from mbt_cli.report.notes import ADDRESS
from mbt_cli.report.seeds import SEED, SHARE_UNITS, clusters_of, seed_values
from mbt_cli.report.ties import Pair
from mbt_cli.scores.over_benchmarks import mean_interval
from mbt_cli.scores.statistics import Clusters, Floats, Interval, Quantity, bootstrap
from mbt_cli.scores.summaries import Paired

METHODS = 32
"""Most methods that are compared, the first of the study: 496 pairs."""
_BOOTSTRAP_UP_TO = 1_000
_ANY = "(all)"
"""The benchmark of a study without the axis."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The paired difference of two methods in one metric, on one benchmark or over several.

    Args:
        first: The number of the first method on the questions that both have.
        second: That of the second.
        interval: The 95 % interval of first minus second; None if nothing can be estimated.
        better: Questions with a higher value of the first, and of the second.
        questions: Number of questions.
    """

    first: float
    second: float
    interval: Interval | None
    better: tuple[int, int]
    questions: int

    @property
    def value(self) -> float:
        """First minus second."""
        return self.first - self.second


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Every two methods of a study; a method is what its cells share that differ in benchmark.

    Args:
        methods: Name of each method.
        cells: For each method, the address of its score cell on each benchmark, or None.
        benchmarks: Name of each benchmark.
        metrics: The metrics that have a value per question.
        left_out: Number of methods beyond `METHODS`.
        pairs: For the numbers of two methods, the first lower: for each metric a difference on each
            benchmark, None where one of them has no value, and last their mean over the
            benchmarks, None if these are not several.
    """

    methods: Sequence[str]
    cells: Sequence[Sequence[str | None]]
    benchmarks: Sequence[str]
    metrics: Sequence[Column]
    left_out: int
    pairs: Mapping[tuple[int, int], Sequence[Sequence[Difference | None]]]


def compared_methods(
    inputs: ReportInputs, metrics: Sequence[str], *, resamples: int, seed: int
) -> Comparisons | None:
    """The paired differences of every two methods; None if there are no two.

    Args:
        inputs: The data of the report.
        metrics: The metrics to compare; those without a value per question are left out.
        resamples: Bootstrap resamples.
        seed: The same seed gives the same intervals.
    """
    if not inputs.scores.collect_schema().names():
        return None
    cells = inputs.summary.select(ADDRESS, *inputs.axes).unique(maintain_order=True)
    if BENCHMARK not in cells.columns:
        cells = cells.with_columns(pl.lit(_ANY).alias(BENCHMARK))
    axes = varying(cells, inputs.axes, always=("model",))
    of_benchmarks = group_labels(cells, axes, BENCHMARK)
    labels = [axis for axis in axes if axis not in (BENCHMARK, *of_benchmarks)]
    if not labels or cells.select(*labels, BENCHMARK).is_duplicated().any():
        return None
    parts = cells.partition_by(labels, maintain_order=True)
    kept = parts[:METHODS]
    if len(kept) < 2:
        return None
    benchmarks = cells[BENCHMARK].unique(maintain_order=True).to_list()
    addresses = [dict(part.select(BENCHMARK, ADDRESS).iter_rows()) for part in kept]
    scores = _scores(inputs, metrics, [a for one in addresses for a in one.values()])
    known = [metric for metric in metrics if metric in set(scores["metric"])]
    values = scores.partition_by("metric", ADDRESS, as_dict=True)
    shares = shares_of_samples(inputs.summary)
    found: dict[tuple[int, int], list[Sequence[Difference | None]]] = {
        pair: [] for pair in combinations(range(len(kept)), 2)
    }
    for metric in known:
        unit = metric_column(inputs, metric).unit
        measure = Measure(metric, unit, pl.DataFrame(), binary=metric in shares)
        on_each = [
            _on_benchmark(
                _Sides.of([values.get((metric, one.get(name, ""))) for one in addresses]),
                list(found),
                measure,
                resamples=resamples,
                seed=seed,
            )
            for name in benchmarks
        ]
        for pair, rows in found.items():
            own = [differences.get(pair) for differences in on_each]
            rows.append([*(one[1] if one else None for one in own), _mean(own, unit)])
    return Comparisons(
        methods=[" · ".join(_names(part, labels)) for part in kept],
        cells=[[one.get(name) for name in benchmarks] for one in addresses],
        benchmarks=[_benchmark(cells, name, of_benchmarks) for name in benchmarks],
        metrics=[metric_column(inputs, metric) for metric in known],
        left_out=len(parts) - len(kept),
        pairs=found,
    )


def _scores(inputs: ReportInputs, metrics: Sequence[str], addresses: Sequence[str]) -> pl.DataFrame:
    """`metric`, `address`, `seed`, `question_id`, `cluster`, `value`, `n` of these cells."""
    columns = inputs.scores.collect_schema().names()
    texts = [
        pl.col(name) if name in columns else pl.lit(None, pl.String).alias(name)
        for name in (SEED, CLUSTER)
    ]
    wanted = inputs.scores.filter(
        pl.col("metric").is_in(list(metrics)),
        pl.col(ADDRESS).is_in(list(addresses)),
        pl.col("value").is_not_null(),
    )
    return wanted.select("metric", ADDRESS, *texts, "question_id", "value", "n").collect()


def _names(rows: pl.DataFrame, labels: Sequence[str]) -> list[str]:
    return [str(rows[label][0]) for label in labels if rows[label][0] is not None]


def _benchmark(cells: pl.DataFrame, name: str, labels: Sequence[str]) -> str:
    own = _names(cells.filter(pl.col(BENCHMARK) == name), labels)
    return f"{name} ({', '.join(own)})" if own else name


@dataclass(frozen=True, slots=True)
class _Sides:
    """The values of every method in one metric on one benchmark.

    Args:
        values: Number of a method to its values, shape (seeds, questions); NaN where it lacks one.
        samples: Number of a method to the samples of each question, shape (questions,).
        drawn: Methods that are trainings, whose seeds stand for others.
        clusters: The cluster of each question; None if questions are independent.
    """

    values: Mapping[int, Floats]
    samples: Mapping[int, Floats]
    drawn: frozenset[int]
    clusters: Clusters | None

    @classmethod
    def of(cls, parts: Sequence[pl.DataFrame | None]) -> "_Sides":
        known = {number: part for number, part in enumerate(parts) if part is not None}
        empty = pl.DataFrame(schema={"question_id": pl.String()})
        asked = [empty, *(part.select("question_id") for part in known.values())]
        ids = pl.concat(asked).unique().sort("question_id")

        def on_all(frame: pl.DataFrame) -> Floats:
            placed = ids.join(frame, on="question_id", how="left", maintain_order="left")
            return placed.drop("question_id").cast(pl.Float64).fill_null(np.nan).to_numpy().T

        samples = {
            number: on_all(part.group_by("question_id").agg(pl.col("n").first()))[0]
            for number, part in known.items()
        }
        return cls(
            {number: on_all(seed_values(part)) for number, part in known.items()},
            samples,
            frozenset(n for n, part in known.items() if part[SEED].null_count() == 0),
            clusters_of(ids["question_id"], list(known.values())),
        )

    def pair(self, numbers: tuple[int, int]) -> "_Sampled | None":
        """Two methods on the questions that both have; None if there are none."""
        if not all(number in self.values for number in numbers):
            return None
        both = np.logical_and(*(np.isfinite(self.values[number][0]) for number in numbers))
        if not both.any():
            return None
        first, second = (self.values[number][:, both] for number in numbers)
        clusters = None
        if self.clusters is not None:
            clusters = np.unique(self.clusters[both], return_inverse=True)[1]
        drawn = (numbers[0] in self.drawn, numbers[1] in self.drawn)
        samples = [self.samples[number][both] for number in numbers]
        return _Sampled(Pair(first, second, clusters, None, drawn), samples[0], samples[1])


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A pair on one benchmark, and the number of samples of each question on both sides."""

    pair: Pair
    first: Floats
    second: Floats

    @property
    def has_seeds(self) -> bool:
        """Whether one side has several seeds."""
        return len(self.pair.first) > 1 or len(self.pair.second) > 1

    def paired(self) -> Paired:
        """The pair of one seed each, as `mbt compare` has it."""
        questions = {"n": self.first, "n_base": self.second}
        sides = (
            Quantity({"value": own[0]}, mean_of_value, self.pair.clusters)
            for own in (self.pair.first, self.pair.second)
        )
        return Paired(pl.DataFrame(questions), *sides)


def _on_benchmark(
    sides: _Sides,
    pairs: Sequence[tuple[int, int]],
    measure: Measure,
    *,
    resamples: int,
    seed: int,
) -> dict[tuple[int, int], tuple[_Sampled, Difference]]:
    """The differences of pairs that have common questions; they share their resamples."""
    sampled = {pair: one for pair in pairs if (one := sides.pair(pair)) is not None}
    single = {pair: one.paired() for pair, one in sampled.items() if not one.has_seeds}
    resampled = {
        pair: one
        for pair, one in single.items()
        if not one.is_share(measure) and one.own.size <= _BOOTSTRAP_UP_TO
    }
    quantities = [one.difference for one in resampled.values()]
    drawn = dict(zip(resampled, bootstrap(quantities, resamples=resamples, seed=seed), strict=True))
    found = {}
    for pair, one in sampled.items():
        if pair in single and (single[pair].is_share(measure) or pair in drawn):
            interval = single[pair].interval(measure, drawn.get(pair))
        else:
            interval = _by_t(one.pair)
        if interval and measure.unit in SHARE_UNITS:
            interval = interval.within(-1.0, 1.0)
        first, second = one.pair.first.mean(axis=0), one.pair.second.mean(axis=0)
        better = (int((first > second).sum()), int((first < second).sum()))
        means = (float(first.mean()), float(second.mean()))
        found[pair] = (one, Difference(*means, interval, better, len(first)))
    return found


def _by_t(pair: Pair) -> Interval | None:
    return pair.estimate().interval() if pair.units > 1 else None


def _mean(found: Sequence[tuple[_Sampled, Difference] | None], unit: str) -> Difference | None:
    """The mean over the benchmarks on which both methods have values; None below two."""
    known = [one for one in found if one is not None]
    if len(known) < 2:
        return None
    parts = [part for _, part in known]
    intervals = [part.interval for part in parts if part.interval is not None]
    interval = None
    if any(one.has_seeds for one, _ in known):
        interval = _by_t(pooled) if (pooled := _pooled([one.pair for one, _ in known])) else None
    elif len(intervals) == len(parts):
        interval = mean_interval([part.value for part in parts], intervals)
    if interval and unit in SHARE_UNITS:
        interval = interval.within(-1.0, 1.0)
    return Difference(
        sum(part.first for part in parts) / len(parts),
        sum(part.second for part in parts) / len(parts),
        interval,
        (sum(part.better[0] for part in parts), sum(part.better[1] for part in parts)),
        sum(part.questions for part in parts),
    )


def _pooled(pairs: Sequence[Pair]) -> Pair | None:
    """The questions of several benchmarks, whose seeds are the same; None if these differ."""
    if len({(len(pair.first), len(pair.second), pair.drawn) for pair in pairs}) > 1:
        return None
    strata = np.repeat(np.arange(len(pairs)), [pair.first.shape[1] for pair in pairs])
    clusters = None
    if any(pair.clusters is not None for pair in pairs):
        own = [
            np.arange(pair.first.shape[1]) if pair.clusters is None else pair.clusters
            for pair in pairs
        ]
        starts = np.cumsum([0, *(int(numbers.max()) + 1 for numbers in own[:-1])])
        clusters = np.concatenate([n + start for n, start in zip(own, starts, strict=True)])
    return Pair(
        np.concatenate([pair.first for pair in pairs], axis=1),
        np.concatenate([pair.second for pair in pairs], axis=1),
        clusters,
        strata,
        pairs[0].drawn,
    )


def page_difference(found: Difference | None, column: Column) -> Json:
    """A difference as texts: first, second, difference, ends of its interval, and counts.

    The last number is 1 if the first method is better beyond its interval, -1 if the second is,
    else 0.
    """
    if found is None:
        return None

    def text(number: float | None) -> str:
        return number_text(number, unit=column.unit, decimals=column.decimals)

    ends = [None, None] if found.interval is None else [found.interval.low, found.interval.high]
    side = 0
    if found.interval and column.best != "none":
        side = int(found.interval.low > 0) - int(found.interval.high < 0)
        side = -side if column.best == "low" else side
    numbers = (found.first, found.second, found.value, *ends)
    return [*map(text, numbers), *found.better, found.questions, side]
