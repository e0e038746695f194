"""Intervals and tests over questions: seeded, vectorized, in bounded memory.

Questions are the unit: rollouts of one question are not independent, so samples are averaged within
their question first, and whole questions are resampled. Where questions come in clusters, such as
those about one document, the clusters are the unit; numbers stay means over questions. There is one
rule for each case; their coverage and errors are measured by tests/bench/coverage.py and stand in
`mbt help metrics`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Means = Mapping[str, Floats]
Clusters = npt.NDArray[np.int64]
"""The cluster of each question, numbered from 0 without gaps, shape (questions,)."""

_CELLS = 1 << 21  # counts in memory at a time: twice 16 MiB
_ROUNDING = 1e-9
_LEAST_ERROR = 0.1
"""Standard error of a resample relative to that of the data: below, a few equal values without the
one that is far from them would put an end of the interval anywhere."""
NORMAL_95 = NormalDist().inv_cdf(0.975)
_POWER = 0.8
_EXACT_UP_TO = 12
_DRAWS = 1 << 16
"""Random patterns of a permutation test: enough for Holm's correction of 160 comparisons."""
_ENOUGH = 100
"""Patterns as extreme as the data after which no more are drawn."""
_PERMUTED_UP_TO = 1_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A range, in the unit of the quantity."""

    low: float
    high: float

    def within(self, low: float, high: float) -> "Interval":
        """The part of it that a quantity with these limits can take."""
        return Interval(min(max(self.low, low), high), max(min(self.high, high), low))


def cluster_numbers(names: Iterable[str]) -> Clusters | None:
    """The clusters of questions, in the order of first appearance; None if each is one question."""
    found, first, inverse = np.unique(
        np.array(list(names), dtype=str), return_index=True, return_inverse=True
    )
    if len(found) == len(inverse):
        return None
    rank = np.empty(len(found), np.int64)
    rank[np.argsort(first)] = np.arange(len(found))
    return rank[inverse]


def per_cluster(values: Floats, clusters: Clusters | None) -> Floats:
    """Values whose mean and standard error over clusters are those of the values of questions.

    The value of a cluster is m + G / n times the sum of its questions' deviations from the mean m,
    with G clusters and n questions: the linearized ratio of the clusters' sums to their sizes. The
    standard error of the mean of these is the clustered one (Liang and Zeger 1986; Miller 2024,
    section 2.2, times G / (G - 1)).

    Args:
        values: Shape (..., questions), without NaN.
        clusters: None gives the values as they are.

    Returns:
        Shape (..., clusters).
    """
    if clusters is None:
        return values
    means = values.mean(axis=-1, keepdims=True)
    sums = _sums(values - means, clusters)
    return np.asarray(means + sums * (sums.shape[-1] / len(clusters)))


def _weights(clusters: Clusters | None, units: int) -> Floats:
    """Size of each unit relative to the mean size, shape (units,)."""
    if clusters is None:
        return np.ones(units)
    return np.asarray(np.bincount(clusters) * (units / len(clusters)))


def effective_clusters(clusters: Clusters) -> float:
    """The number of independent questions that clusters are worth at least: n^2 / sum of n_c^2.

    So many, with n_c questions in cluster c, if all questions of a cluster have the same value
    (Kish 1965).
    """
    sizes = np.bincount(clusters)
    return float(len(clusters) ** 2 / (sizes.astype(np.float64) ** 2).sum())


def _sums(values: Floats, clusters: Clusters | None) -> Floats:
    """Sum of the values of each cluster, over the last axis."""
    if clusters is None:
        return values
    order = np.argsort(clusters, kind="stable")
    begins = np.flatnonzero(np.diff(clusters[order], prepend=-1))
    return np.asarray(np.add.reduceat(values[..., order], begins, axis=-1))


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number computed from means over questions.

    Args:
        columns: Column to one value per question, shape (questions,), NaN for no value. All columns
            have the same length.
        estimate: Computes the number from the means, elementwise over resamples.
        clusters: The cluster of each question; None if questions are independent.
    """

    columns: Mapping[str, Floats]
    estimate: Callable[[Means], Floats]
    clusters: Clusters | None = None

    @property
    def questions(self) -> int:
        """Number of questions."""
        return len(next(iter(self.columns.values())))

    @property
    def size(self) -> int:
        """Number of units: of clusters, else of questions."""
        if self.clusters is None or not len(self.clusters):
            return self.questions
        return int(self.clusters.max()) + 1

    def totals(self, names: Sequence[str] | None = None) -> tuple[Floats, Floats]:
        """Sums of the values of each unit, and their numbers, shapes (columns, units)."""
        stacked = np.stack([self.columns[name] for name in names or self.columns])
        there = ~np.isnan(stacked)
        filled = np.where(there, stacked, 0.0)
        return _sums(filled, self.clusters), _sums(there.astype(np.float64), self.clusters)

    def value(self) -> float:
        """The number over all questions; NaN if it is undefined."""
        means = {name: _mean(values) for name, values in self.columns.items()}
        return float(_estimated(self, means)[0])

    def influence(self) -> Floats:
        """How much each unit moves the number, shape (units,), with mean 0.

        The empirical influence function (Efron and Tibshirani 1993, chapter 21), by central
        differences: for a plain mean the value minus the mean. A mean of its squares over n is the
        delta method's variance. That of a cluster is the sum of its questions', times clusters over
        questions. NaN if the number is undefined.
        """
        n, names = self.questions, list(self.columns)
        stacked = np.stack([self.columns[name] for name in names])
        there = ~np.isnan(stacked)
        counts = there.sum(axis=1, keepdims=True)
        if not counts.all():
            return np.full(self.size, np.nan)
        filled = np.where(there, stacked, 0.0)
        means = filled.sum(axis=1, keepdims=True) / counts
        apart = np.where(there, filled - means, 0.0) * (n / counts)
        spread = np.sqrt((apart**2).mean(axis=1))
        step = 1e-4 * np.where(spread > 0, spread, 1.0)
        moved = means + np.concatenate([np.diag(step), -np.diag(step)], axis=1)
        found = _estimated(self, dict(zip(names, moved, strict=True)))
        if not np.isfinite(found).all():
            return np.full(self.size, np.nan)
        slopes = (found[: len(names)] - found[len(names) :]) / (2 * step)
        influence = np.asarray(slopes @ apart, dtype=np.float64)
        return per_cluster(np.asarray(influence - influence.mean()), self.clusters)


@dataclass(frozen=True, slots=True)
class Resampled:
    """Bootstrap resamples of a quantity.

    Args:
        values: The number in each resample, shape (resamples,); NaN where it is undefined.
        errors: Its standard error in each resample, from the influence of the drawn units.
        value: The number over all questions.
        error: Its standard error.
        size: Number of units: of clusters, else of questions.
    """

    values: Floats
    errors: Floats
    value: float
    error: float
    size: int

    @property
    def undefined(self) -> float:
        """Share of the resamples in which the number is undefined."""
        return float(1 - np.isfinite(self.values).mean())

    def interval_by_log(self, level: float = 0.95) -> Interval | None:
        """That of the logarithm of a positive number, such as a ratio of two means.

        Such a ratio is skewed where its denominator is small, and its error grows with it. Where
        the upper end is above all numbers, the interval is that of the number itself.
        """
        if not self.value > 0:
            return self.interval(level)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.values)
        value, error = math.log(self.value), self.error / self.value
        found = Resampled(logs, self.errors / self.value, value, error, self.size).interval(level)
        if found is None or found.high > _LARGEST_LOG:
            return found and self.interval(level)
        return Interval(math.exp(found.low), math.exp(found.high))

    def interval(self, level: float = 0.95) -> Interval | None:
        """The studentized bootstrap interval; None if there is no spread to estimate.

        Each resample gives (number - value) / its own standard error, and the percentiles of these
        take the place of those of Student's t (Efron and Tibshirani 1993, section 12.5). Where too
        many resamples have no spread for that, Student's t itself is used.
        """
        if (
            self.size < 2
            or not np.isfinite(self.value)
            or not self.error > _ROUNDING * abs(self.value)
        ):
            return None
        defined = np.isfinite(self.values)
        apart, errors = self.values[defined] - self.value, self.errors[defined]
        if not len(apart):
            return None
        has_spread = errors > _ROUNDING * self.error
        ratios = np.where(apart > 0, np.inf, -np.inf)
        ratios[np.abs(apart) <= _ROUNDING * self.error] = 0.0
        least = _LEAST_ERROR * self.error
        ratios[has_spread] = apart[has_spread] / np.maximum(errors[has_spread], least)
        tail = round(50 * (1 - level), 10)
        low, high = np.percentile(ratios, [tail, 100 - tail], method="closest_observation")
        t = t_quantile(self.size - 1, (1 + level) / 2)
        low, high = (low if np.isfinite(low) else -t), (high if np.isfinite(high) else t)
        return Interval(self.value - high * self.error, self.value - low * self.error)

    def interval_of_difference(self, level: float = 0.95) -> Interval | None:
        """`interval`, with each end at least as far out as that of Student's t.

        Paired differences are more symmetric than the values: in small studies with a few large
        ones the percentiles that rest on these alone are too near on one side.
        """
        found = self.interval(level)
        if found is None:
            return None
        half = t_quantile(self.size - 1, (1 + level) / 2) * self.error
        return Interval(min(found.low, self.value - half), max(found.high, self.value + half))


_LARGEST_LOG = 700.0


def resample_counts(size: int, *, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each of `size` units is drawn, in chunks of shape (resamples, size).

    The draws depend on `size` and `seed` only, so quantities over the same units share their
    resamples.
    """
    random = np.random.default_rng([seed, size])
    step = max(1, _CELLS // size)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = random.integers(0, size, (rows, size))
        drawn += np.arange(rows)[:, None] * size
        counts = np.bincount(drawn.reshape(-1), minlength=rows * size)
        yield counts.reshape(rows, size).astype(np.float64)


def bootstrap(quantities: Sequence[Quantity], *, resamples: int, seed: int) -> list[Resampled]:
    """Each quantity over bootstrap resamples of its units: its clusters, else its questions.

    Quantities with the same number of units share their resamples.

    Raises:
        ValueError: `resamples` is below 1, or a quantity has no questions.
    """
    if resamples < 1:
        raise ValueError(f"`resamples` is {resamples}; at least 1 is needed")
    if any(quantity.size == 0 for quantity in quantities):
        raise ValueError("a quantity over no questions has no interval")
    values = [np.empty(resamples) for _ in quantities]
    errors = [np.empty(resamples) for _ in quantities]
    influences = [quantity.influence() for quantity in quantities]
    for size in sorted({quantity.size for quantity in quantities}):
        same = [i for i, quantity in enumerate(quantities) if quantity.size == size]
        totals = [quantities[i].totals() for i in same]
        sums, numbers = (np.concatenate(parts).T for parts in zip(*totals, strict=True))
        moved = np.stack([influences[i] for i in same], axis=1)
        weights = np.stack([_weights(quantities[i].clusters, size) for i in same], axis=1)
        start = 0
        for counts in resample_counts(size, resamples=resamples, seed=seed):
            means = iter(_means(counts, sums, numbers))
            stop = start + len(counts)
            found = _resampled_errors(counts, moved, weights)
            for place, i in enumerate(same):
                mine = {name: next(means) for name in quantities[i].columns}
                values[i][start:stop] = _estimated(quantities[i], mine)
                errors[i][start:stop] = found[:, place]
            start = stop
    return [
        Resampled(
            drawn,
            spread,
            quantity.value(),
            float(_standard_errors(np.zeros(1), np.array([np.mean(moved**2)]), quantity.size)[0]),
            quantity.size,
        )
        for drawn, spread, quantity, moved in zip(
            values, errors, quantities, influences, strict=True
        )
    ]


def share_interval(
    means: Floats, samples: Floats, clusters: Clusters | None = None, level: float = 0.95
) -> Interval:
    """Wilson's score interval of a share, on the effective number of samples.

    Args:
        means: Share of each question, shape (questions,), from 0 to 1.
        samples: Number of samples of each question, shape (questions,).
        clusters: The cluster of each question; None if questions are independent.
        level: Coverage of the interval.

    With m the mean of the shares, n_eff = m (1 - m) / var(mean of the shares), times (z / t)^2 for
    the t of n - 1 degrees of freedom, at least the number of questions n and at most the number of
    samples (Korn and Graubard 1998, with the score interval in place of the exact one; Brown, Cai
    and DasGupta 2001). At 0 and 1 n_eff is n. With clusters the variance is the clustered one,
    t has their number less one degrees of freedom, and `effective_clusters` takes the place of n.
    Their n_eff is estimated with one more cluster of mean size, half of it right and half wrong, as
    two clusters; without it the intervals of shares near 0 and 1 cover 87 to 92 % at 30 clusters.
    """
    m, n = float(means.mean()), len(means)
    if clusters is not None and len(np.unique(clusters)) < n:
        least, effective = effective_clusters(clusters), _worth(means, clusters, level)
    else:
        variance = float(means.var(ddof=1)) / n if n > 1 else 0.0
        least, effective = float(n), _per_variance(m, variance, n, level)
    if not 0 < m < 1:
        effective = least
    return _on_effective(m, effective, least, max(float(samples.sum()), n), level)


def effective_share_interval(
    share: float, variance: float, *, degrees: int, fewest: float, most: float
) -> Interval:
    """Wilson's 95 % score interval of a share whose variance is known, as in `share_interval`.

    Args:
        share: From 0 to 1.
        variance: Of the share; 0 if no cluster differs.
        degrees: Degrees of freedom of the variance; below 1 it is not used.
        fewest: Number of clusters.
        most: Number of samples.
    """
    effective = _per_variance(share, variance, degrees + 1, 0.95) if 0 < share < 1 else fewest
    return _on_effective(share, effective, fewest, most, 0.95)


def _on_effective(
    share: float, effective: float, fewest: float, most: float, level: float
) -> Interval:
    effective = min(max(effective, fewest), most)
    return wilson(min(max(share, 0.0), 1.0) * effective, effective, level)


def _per_variance(m: float, variance: float, units: int, level: float) -> float:
    """The effective number of samples of a share, from the variance of its mean over units."""
    if units < 2:
        return 0.0
    if not variance > 0:
        return math.inf
    return m * (1 - m) / variance * (_normal(level) / t_quantile(units - 1, (1 + level) / 2)) ** 2


def _worth(means: Floats, clusters: Clusters, level: float) -> float:
    """The effective number of samples of a share over clusters."""
    sums, sizes = _sums(means, clusters), _sums(np.ones(len(means)), clusters)
    count, half = len(sums), len(means) / len(sums) / 2
    sums, sizes = np.append(sums, [half, 0.0]), np.append(sizes, [half, half])
    m = float(sums.sum() / sizes.sum())
    variance = float(((sums - m * sizes) ** 2).sum()) / sizes.sum() ** 2 * (count + 1) / count
    return _per_variance(m, variance * (count + 1) / count, count, level)


def paired_share_interval(
    own: Floats,
    base: Floats,
    samples: Floats,
    base_samples: Floats,
    clusters: Clusters | None = None,
    level: float = 0.95,
) -> Interval:
    """Interval of the difference of two shares on the same questions.

    Tango's score interval where questions are independent and each has a 0 or a 1 on both sides.
    Else Newcombe's square-and-add of the two Wilson intervals with their correlation (1998, method
    10 without its correction of the covariance), that of the values of `per_cluster`.

    Args:
        own: Share of each question, shape (questions,).
        base: Share of the same questions on the other side.
        samples: Number of samples of each question.
        base_samples: The same on the other side.
        clusters: The cluster of each question; None if questions are independent.
        level: Coverage of the interval.
    """
    mine, other = per_cluster(own, clusters), per_cluster(base, clusters)
    n = len(own)
    if len(mine) == n and is_binary(own) and is_binary(base):
        return tango_interval(int((own > base).sum()), int((own < base).sum()), n, level)
    first = share_interval(own, samples, clusters, level)
    second = share_interval(base, base_samples, clusters, level)
    p, q = float(own.mean()), float(base.mean())
    spread = math.sqrt(float(mine.var()) * float(other.var()))
    covariance = float(((mine - p) * (other - q)).mean())
    r = covariance / spread if spread > 0 else 0.0

    def added(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * r * x * y + y * y, 0.0))

    difference = p - q
    return Interval(
        difference - added(p - first.low, second.high - q),
        difference + added(first.high - p, q - second.low),
    ).within(-1.0, 1.0)


def tango_interval(only_first: int, only_second: int, n: int, level: float = 0.95) -> Interval:
    """Score interval of the difference of two paired shares (Tango 1998).

    All differences that the score test of McNemar's kind does not reject, with the share of the
    questions that only the second side has right at its maximum likelihood under the difference.

    Args:
        only_first: Questions that only the first side has right.
        only_second: Questions that only the second side has right.
        n: All questions, at least 1.
        level: Coverage of the interval.

    Example:
        >>> found = tango_interval(1, 7, 21)  # Fagerland, Lydersen and Laake 2014, table 1
        >>> round(found.low, 3), round(found.high, 3)
        (-0.517, -0.026)
    """
    z = _normal(level)

    def score(difference: float) -> float:
        spread = difference * (1 - difference)
        b = (2 * n - only_first + only_second) * difference - only_first - only_second
        share = (math.sqrt(max(b * b + 8 * n * only_second * spread, 0.0)) - b) / (4 * n)
        variance = n * (2 * share + spread)
        apart = only_first - only_second - n * difference
        return apart / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, apart)

    def bound(low: float, high: float, wanted: float) -> float:
        for _ in range(60):  # the score falls as the difference grows
            middle = (low + high) / 2
            low, high = (middle, high) if score(middle) > wanted else (low, middle)
        return (low + high) / 2

    seen = (only_first - only_second) / n
    return Interval(
        -1.0 if seen == -1 else bound(-1.0, seen, z), 1.0 if seen == 1 else bound(seen, 1.0, -z)
    )


def swap_p(own: Quantity, base: Quantity, *, seed: int) -> float | None:
    """Two-sided p value of a paired difference: a permutation test.

    If the sides do not differ, exchanging them within any units (clusters, else questions) changes
    nothing. For values per question that is the sign-flip test of their differences. All patterns
    are tried up to 12 units that differ, then 65,536 random ones, fewer if many are as extreme as
    the data; above 1,000 the two sides are compared by Student's t of the influence of units, to
    which the test converges.

    Args:
        own: A number of one side.
        base: The same number of the other side, on the same questions in the same order.
        seed: The same seed gives the same patterns.

    Returns:
        p; None if the difference is undefined.
    """
    names = list(own.columns)
    mine, other = own.totals(), base.totals(names)
    observed = abs(own.value() - base.value())
    differ = ((mine[0] != other[0]) | (mine[1] != other[1])).any(axis=0)
    n = int(differ.sum())
    if not np.isfinite(observed):
        return None
    if n == 0:
        return 1.0
    if n > _PERMUTED_UP_TO:
        return _t_p(own, base)
    far = observed - _ROUNDING * max(1.0, observed)
    done = extreme = 0
    moved = [(there - here)[:, differ] for here, there in zip(mine, other, strict=True)]
    for patterns in _patterns(n, seed):
        totals, counts = (_exchanged_sums(patterns, one) for one in moved)
        found = np.abs(
            _estimated(own, _means_after(names, mine, totals, counts))
            - _estimated(base, _means_after(names, other, -totals, -counts))
        )
        done += len(patterns)
        extreme += int((found >= far).sum())
        if n > _EXACT_UP_TO and extreme >= _ENOUGH:
            break
    # random patterns: the data are one of them, so that the test keeps its level
    return extreme / done if n <= _EXACT_UP_TO else (extreme + 1) / (done + 1)


def _t_p(own: Quantity, base: Quantity) -> float | None:
    if own.size < 2:
        return None
    apart = own.influence() - base.influence()
    difference = own.value() - base.value()
    error = math.sqrt(float(apart @ apart) / (own.size - 1) / own.size)
    if not np.isfinite(error):
        return None
    return 0.0 if error == 0 else t_tail(abs(difference) / error, own.size - 1)


def _patterns(n: int, seed: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Which of `n` units are exchanged: chunks of shape (patterns, bytes), a bit for each unit."""
    if n <= _EXACT_UP_TO:
        yield np.packbits((np.arange(1 << n)[:, None] >> np.arange(n)) & 1, axis=1)
        return
    random = np.random.default_rng([seed, n])
    step = 1 << 11
    for _ in range(_DRAWS // step):
        yield np.frombuffer(random.bytes(step * -(-n // 8)), np.uint8).reshape(step, -1)


def _exchanged_sums(patterns: npt.NDArray[np.uint8], values: Floats) -> Floats:
    """Sums over the exchanged units, shape (columns, patterns), by a table for each byte.

    Args:
        patterns: See `_patterns`.
        values: Shape (columns, units).
    """
    columns, n = values.shape
    places = np.arange(patterns.shape[1])
    padded = np.zeros((columns, 8 * len(places)))
    padded[:, :n] = values
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float64)
    tables = padded.reshape(columns, -1, 8) @ bits.T  # (columns, bytes, 256)
    return np.stack(
        [
            table[places, patterns].sum(axis=1) if table.any() else np.zeros(len(patterns))
            for table in tables
        ]
    )


def _means_after(
    names: Sequence[str], side: tuple[Floats, Floats], totals: Floats, counts: Floats
) -> Means:
    """Means of one side after exchanges, shape (patterns,) for each column.

    Args:
        names: The columns.
        side: See `Quantity.totals`.
        totals: What the exchanges add to the sums, shape (columns, patterns).
        counts: What they add to the numbers of values.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (side[0].sum(axis=1)[:, None] + totals) / (side[1].sum(axis=1)[:, None] + counts)
    return dict(zip(names, means, strict=True))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test, from the questions that only one side got right.

    Example:
        >>> mcnemar_p(1, 5)  # 2 * (1 + 6) / 2**6
        0.21875
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    term = total = 1
    for i in range(fewer):
        term = term * (n - i) // (i + 1)
        total += term
    return min(1.0, 2 * total / (1 << n))


def paired_p(own: Quantity, base: Quantity, *, seed: int) -> tuple[float | None, str]:
    """P value of a paired difference and the name of the test, decided by the values.

    Returns:
        `mcnemar` if questions are independent and each has a 0 or a 1 on both sides, `permutation`
        for other means, and `t`, Student's t of the influence of questions, for formulas of several
        means.
    """
    if list(own.columns) == list(base.columns) == ["value"]:
        mine, other = own.columns["value"], base.columns["value"]
        if own.size == own.questions and is_binary(mine) and is_binary(other):
            return mcnemar_p(int((mine > other).sum()), int((mine < other).sum())), "mcnemar"
        return swap_p(own, base, seed=seed), "permutation"
    # exchanging the sides of a formula of several means tests more than their difference
    return _t_p(own, base), "t"


def is_binary(values: Floats) -> bool:
    """Whether all values are 0 or 1."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def not_worse_than_best(
    values: Floats, *, resamples: int, seed: int, clusters: Clusters | None = None
) -> npt.NDArray[np.bool_]:
    """Which rows a study cannot tell from the best one.

    Multiple comparisons with the best (Hsu 1981) by max-t: the largest of all paired t values must
    exceed the 95th percentile of the same under random signs of the questions' deviations (of the
    clusters', where there are some), so that with equal rows all are in the set in at least 95 % of
    studies.

    Args:
        values: Value of each row (first axis) for each question (second axis); higher is better.
        resamples: Number of sign patterns.
        seed: The same seed gives the same patterns.
        clusters: The cluster of each question; None if questions are independent.

    Returns:
        Shape (rows,); all True below 2 questions or clusters.
    """
    values = per_cluster(values, clusters)
    rows, n = values.shape
    weights = _weights(clusters, n)
    if rows < 2 or n < 2:
        return np.ones(rows, dtype=bool)
    means = values.mean(axis=1)
    apart = values - means[:, None]
    gram = apart @ apart.T
    spread = np.diag(gram)[:, None] + np.diag(gram)[None, :] - 2 * gram
    spread = np.where(spread > _ROUNDING * max(1e-300, float(spread.max())), spread, 0.0)
    worse = means[None, :] - means[:, None]  # how far the column's row is above
    ahead = _t_values(worse, spread, n)
    random = np.random.default_rng([seed, rows, n])
    largest = np.empty(resamples)
    step = max(1, _CELLS // max(n, rows * rows))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        signs = random.integers(0, 2, (count, n)).astype(np.float64) * 2 - 1
        flipped = signs @ apart.T / n  # (count, rows)
        between = flipped[:, None, :] - flipped[:, :, None]
        weighted = signs @ (weights * apart).T / n
        leaning = weighted[:, None, :] - weighted[:, :, None]
        # the sum of squares about 0 stays the same under any signs; a unit's share of the mean
        # that it is compared with is its weight
        about = spread - between * (2 * n * leaning - (weights @ weights) * between)
        largest[start : start + count] = _t_values(between, about, n).max(axis=(1, 2))
    critical = np.percentile(largest, 95, method="higher")
    found: npt.NDArray[np.bool_] = ahead.max(axis=1) <= max(critical, t_quantile(n - 1, 0.95))
    return found


def _t_values(difference: Floats, squares: Floats, n: int) -> Floats:
    """Paired t values, from mean differences and sums of squared deviations from these means."""
    error = np.sqrt(np.maximum(squares, 0.0) / (n - 1) / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = difference / error
    endless = np.where(difference > 0, np.inf, -np.inf)
    none = np.abs(difference) <= _ROUNDING
    return np.where(none, 0.0, np.where(error > 0, found, endless))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of several p values; None stays None and is not counted.

    Example:
        >>> holm([0.01, None, 0.04, 0.03])
        [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[i] = largest
    return corrected


def wilson(successes: float, n: float, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share.

    Args:
        successes: Number of successes, from 0 to `n`.
        n: Number of independent trials, at least 1; need not be whole.
        level: Coverage of the interval.

    Raises:
        ValueError: `n` is below 1 or `successes` is not in 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is not a share")
    z = _normal(level)
    share, z2 = successes / n, z**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def _normal(level: float) -> float:
    """The quantile of the standard normal whose interval has this coverage."""
    return NormalDist().inv_cdf((1 + level) / 2)


_NEARLY_HALF = 0.49  # at one half the interval is a point


def equivalence_p(interval: Callable[[float], Interval | None], margin: float) -> float | None:
    """P value of two one-sided tests: is the difference within -margin and margin?

    They are the tests that the intervals invert (Schuirmann 1987): at the level a both reject
    exactly if the interval of coverage 1 - 2 a is within the margin, so p is the smallest such a.

    Args:
        interval: The interval of the difference at a coverage.
        margin: In the unit of the difference, above 0.

    Returns:
        p; 1 if the difference itself is not within the margin, None without an interval.
    """

    def is_within(level: float) -> bool:
        found = interval(1 - 2 * level)
        return found is not None and -margin < found.low and found.high < margin

    if interval(0.9) is None:
        return None
    # from 5 %, so that p says the same as the 90 % interval
    low, high = (0.0, 0.05) if is_within(0.05) else (0.05, _NEARLY_HALF)
    if high == _NEARLY_HALF and not is_within(high):
        return 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return high


def smallest_difference(error: float, degrees: float, *, pairs: int | None = None) -> float:
    """The true difference that a paired test at 5 %, two-sided, finds with 80 % power.

    k x the standard error of the paired difference, with k = t at 0.975 + t at 0.8 (Bloom 1995).
    For the exact McNemar test the difference d itself lowers the error: d solves
    d = k sqrt(error^2 - d^2 / pairs). It is at least k^2 / (pairs + k^2), because only questions
    that differ can make it; and 1 / pairs more, the test's continuity correction.

    Args:
        error: Standard error of the paired difference.
        degrees: Its degrees of freedom.
        pairs: Number of questions with a 0 or a 1 on both sides; None for other values.
    """
    k = t_quantile(degrees) + t_quantile(degrees, _POWER)
    if pairs is None:
        return k * error
    found = k * error * math.sqrt(pairs / (pairs + k * k))
    return max(found, k * k / (pairs + k * k)) + 1 / pairs


@cache
def t_quantile(degrees: float, probability: float = 0.975) -> float:
    """Quantile of Student's t, by bisection; `probability` above 0.5."""
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > 2 * (1 - probability):
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_tail(middle, degrees) > 2 * (1 - probability):
            low = middle
        else:
            high = middle
    return (low + high) / 2


_AS_NORMAL = 1e9
"""Degrees of freedom above which Student's t is the normal distribution in all digits used."""


def t_tail(t: float, degrees: float) -> float:
    """Two-sided tail probability of Student's t, at least 1e-300.

    The integral of cos(x)^(degrees - 1) from arctan(t / sqrt(degrees)) to pi / 2 over that from 0,
    by Gauss-Legendre quadrature in log space; the normal one for infinite degrees.

    Raises:
        ValueError: An argument is NaN.
    """
    if math.isnan(t) or math.isnan(degrees):
        raise ValueError("t and its degrees of freedom must be numbers")
    if degrees > _AS_NORMAL:
        return max(math.erfc(t / math.sqrt(2)), 1e-300)
    nodes, weights = _legendre()
    whole = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi) / 2
    begin = math.atan2(t, math.sqrt(degrees))
    # with many degrees the integrand is narrow: integrate where it is not negligible
    width = min(math.pi / 2 - begin, 40 / math.sqrt(degrees))
    x = begin + width * (nodes + 1) / 2
    logs = (degrees - 1) * np.log(np.maximum(np.cos(x), 1e-300)) + whole
    total = float((weights * np.exp(logs)).sum()) * width / 2
    return min(1.0, max(2 * total, 1e-300))


@cache
def _legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def _standard_errors(means: Floats, squares: Floats, size: int) -> Floats:
    """Standard errors of means, from the means of influences and of their squares."""
    if size < 2:
        return np.zeros_like(means)
    found: Floats = np.sqrt(np.maximum(squares - means**2, 0.0) / (size - 1))
    return found


def _resampled_errors(counts: Floats, moved: Floats, weights: Floats) -> Floats:
    """Standard errors of numbers in each resample, shape (resamples, numbers).

    Clusters of other sizes make a resample of another size: the influence of a unit is about that
    of the resample's own mean, of which each unit has its weight.

    Args:
        counts: How often each unit is drawn, shape (resamples, units).
        moved: Influence of each unit on each number, shape (units, numbers).
        weights: Sizes of the units relative to their mean, in the same shape.
    """
    size = len(moved)
    means, squares = counts @ moved / size, counts @ moved**2 / size
    if (weights == 1).all():
        return _standard_errors(means, squares, size)
    whole = counts @ weights / size
    apart = means / whole
    leaning, even = counts @ (moved * weights) / size, counts @ weights**2 / size
    squares = np.maximum(squares - apart * (2 * leaning - apart * even), 0.0)
    return _standard_errors(np.zeros_like(means), squares, size) / whole


def _means(counts: Floats, sums: Floats, numbers: Floats) -> list[Floats]:
    """Mean of each column in each resample: one matrix product for all of them.

    Args:
        counts: How often each unit is drawn, shape (resamples, units).
        sums: Sum of each unit's values, shape (units, columns).
        numbers: Number of each unit's values, in the same shape.
    """
    totals = counts @ sums
    uneven = np.flatnonzero((numbers != 1).any(axis=0))
    weights = np.full(totals.shape, float(len(sums)))
    if len(uneven):
        weights[:, uneven] = counts @ numbers[:, uneven]
    means = np.divide(totals, weights, out=np.full(totals.shape, np.nan), where=weights > 0)
    return list(means.T)


def _mean(values: Floats) -> Floats:
    """Mean of the values that are not NaN, shape (1,); NaN if there are none."""
    there = values[~np.isnan(values)]
    return np.array([there.mean() if len(there) else np.nan])


def _estimated(quantity: Quantity, means: Means) -> Floats:
    # a ratio may divide by 0 in a resample; intervals leave the NaN out
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(quantity.estimate(means), dtype=np.float64)
