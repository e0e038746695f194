"""Intervals and tests over questions: seeded, vectorised, in bounded memory.

Questions are the unit: rollouts of one question are not independent, so samples are averaged within
their question first, and whole questions are resampled.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Means = Mapping[str, Floats]

_CELLS = 1 << 21  # counts in memory at a time: twice 16 MiB
_ROUNDING = 1e-12
_NORMAL_95 = 1.959963984540054  # 97.5th percentile of the standard normal


@dataclass(frozen=True, slots=True)
class Interval:
    """A range, in the unit of the quantity."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number computed from means over questions.

    Args:
        columns: Column to one value per question, shape (questions,), NaN for no value. All columns
            have the same length.
        estimate: Computes the number from the means, elementwise over resamples.
    """

    columns: Mapping[str, Floats]
    estimate: Callable[[Means], Floats]

    @property
    def size(self) -> int:
        """Number of questions."""
        return len(next(iter(self.columns.values())))

    def value(self) -> float:
        """The number over all questions; NaN if it is undefined."""
        means = {name: _mean(values) for name, values in self.columns.items()}
        return float(_estimated(self, means)[0])


def resample_counts(size: int, *, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each of `size` questions is drawn, in chunks of shape (resamples, size).

    The draws depend on `size` and `seed` only, so quantities over the same questions share their
    resamples. That makes differences paired.
    """
    random = np.random.default_rng([seed, size])
    step = max(1, _CELLS // size)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = random.integers(0, size, (rows, size))
        drawn += np.arange(rows)[:, None] * size
        counts = np.bincount(drawn.reshape(-1), minlength=rows * size)
        yield counts.reshape(rows, size).astype(np.float64)


def bootstrap(quantities: Sequence[Quantity], *, resamples: int, seed: int) -> list[Floats]:
    """Each quantity over bootstrap resamples of its questions, shape (resamples,).

    Quantities with the same number of questions share their resamples. To compare two quantities,
    give them the same questions in the same order.

    Raises:
        ValueError: `resamples` is below 1, or a quantity has no questions.
    """
    if resamples < 1:
        raise ValueError(f"`resamples` is {resamples}; at least 1 is needed")
    if any(quantity.size == 0 for quantity in quantities):
        raise ValueError("a quantity over no questions has no interval")
    drawn = [np.empty(resamples) for _ in quantities]
    for size in sorted({quantity.size for quantity in quantities}):
        same = [i for i, quantity in enumerate(quantities) if quantity.size == size]
        columns = [c for i in same for c in quantities[i].columns.values()]
        start = 0
        for counts in resample_counts(size, resamples=resamples, seed=seed):
            means = iter(_means(counts, columns))
            stop = start + len(counts)
            for i in same:
                mine = {name: next(means) for name in quantities[i].columns}
                drawn[i][start:stop] = _estimated(quantities[i], mine)
            start = stop
    return drawn


def percentile_interval(drawn: Floats) -> Interval | None:
    """2.5th and 97.5th percentile of the resamples; None if all of them are undefined."""
    defined = drawn[np.isfinite(drawn)]
    if not len(defined):
        return None
    low, high = np.percentile(defined, [2.5, 97.5])
    return Interval(float(low), float(high))


def bootstrap_p(differences: Floats) -> float | None:
    """Two-sided p value of a difference, from its bootstrap resamples.

    Twice the smaller share of resamples on either side of 0. One is added to both counts, so that
    the smallest p is 2 / (resamples + 1). None if all resamples are undefined.
    """
    defined = differences[np.isfinite(differences)]
    if not len(defined):
        return None
    # equal means can differ in the last bit
    smaller = min(int((defined <= _ROUNDING).sum()), int((defined >= -_ROUNDING).sum()))
    return min(1.0, 2 * (1 + smaller) / (len(defined) + 1))


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


def wilson(successes: float, n: int) -> Interval:
    """Wilson's 95 % score interval of a share.

    Args:
        successes: Number of successes, from 0 to `n`.
        n: Number of independent trials, at least 1.

    Raises:
        ValueError: `n` is below 1 or `successes` is not in 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is not a share")
    share, z2 = successes / n, _NORMAL_95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _NORMAL_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def _means(counts: Floats, columns: Sequence[Floats]) -> list[Floats]:
    """Mean of each column in each resample: one matrix product for all of them."""
    stacked = np.stack(columns, axis=1)
    missing = np.isnan(stacked)
    totals = counts @ np.where(missing, 0.0, stacked)
    partial = np.flatnonzero(missing.any(axis=0))
    weights = np.full(totals.shape, float(len(stacked)))
    if len(partial):
        weights[:, partial] = counts @ (~missing[:, partial]).astype(np.float64)
    means = np.divide(totals, weights, out=np.full(totals.shape, np.nan), where=weights > 0)
    return list(means.T)


def _mean(values: Floats) -> Floats:
    """Mean of the values that are not NaN, shape (1,); NaN if there are none."""
    there = values[~np.isnan(values)]
    return np.array([there.mean() if len(there) else np.nan])


def _estimated(quantity: Quantity, means: Means) -> Floats:
    # a ratio may divide by 0 in a resample; percentiles leave the NaN out
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(quantity.estimate(means), dtype=np.float64)
