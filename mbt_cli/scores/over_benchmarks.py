"""Means over benchmarks, in which each benchmark counts once, with their intervals.

Benchmarks have questions of their own, so their numbers are independent. The mean of B of them is a
stratified mean: its variance is the sum of theirs over B^2.
"""

import math
from collections.abc import Sequence

import numpy as np

from mbt_cli.scores.statistics import Clusters, Floats, Interval


def mean_interval(values: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """The interval of the mean of independent numbers, from the interval of each.

    Square-and-add, as for the sum of any estimates (Zou and Donner 2008): the distance from the
    mean to each end is the root of the summed squares of the numbers' own distances, over their
    count. It takes over the skew of the intervals, such as that of shares near 0.

    Args:
        values: The numbers, at least one.
        intervals: The interval of each, of the same coverage.

    Example:
        >>> found = mean_interval([0.5, 0.7], [Interval(0.47, 0.53), Interval(0.66, 0.74)])
        >>> round(found.low, 3), round(found.high, 3)
        (0.575, 0.625)
    """
    count = len(values)
    mean = sum(values) / count
    below = math.hypot(*(v - i.low for v, i in zip(values, intervals, strict=True)))
    above = math.hypot(*(i.high - v for v, i in zip(values, intervals, strict=True)))
    return Interval(mean - below / count, mean + above / count)


def weighted(values: Floats, strata: Clusters) -> Floats:
    """Values whose mean over all questions is the mean over strata.

    Args:
        values: Shape (..., questions).
        strata: The stratum (benchmark) of each question, numbered from 0 without gaps.
    """
    sizes = np.bincount(strata)
    return np.asarray(values * (len(strata) / len(sizes) / sizes)[strata])


def stratified(values: Floats, strata: Clusters) -> Floats:
    """Values whose mean and standard error are those of the mean over strata.

    The value of a question is the mean over strata plus N / (B n_b) times its deviation from the
    mean of its own stratum, of which n_b of all N questions are: the linearized stratified mean.
    A deviation also gets the root of n_b / (n_b - 1) (N - 1) / N, so that the variance of each
    stratum has its own degrees of freedom.

    Args:
        values: Shape (..., questions), without NaN.
        strata: The stratum of each question, numbered from 0 without gaps.
    """
    sizes = np.bincount(strata)
    of_stratum = np.stack([values[..., strata == b].mean(axis=-1) for b in range(len(sizes))], -1)
    freedom = sizes / np.maximum(sizes - 1, 1) * (1 - 1 / len(strata))
    apart = weighted(values - of_stratum[..., strata], strata) * np.sqrt(freedom)[strata]
    return np.asarray(of_stratum.mean(axis=-1, keepdims=True) + apart)
