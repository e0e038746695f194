"""Means over several seeds of one training, with errors that count seeds and questions.

Every seed answers the same questions, so seeds and questions are crossed random effects: a value is
the overall mean, plus an effect of the seed, plus one of the question, plus a rest. The variance of
the mean over k seeds and n questions is estimated from mean squares (Searle, Casella and McCulloch
1992, chapter 4):

    V = S_q / n + max(0, S_s / k - S_e / (k n))

S_q is the variance of the questions' means over seeds, S_s that of the seeds' means over questions,
S_e the mean square of the rest. Its degrees of freedom are Satterthwaite's (1946). Clusters of
questions take the place of questions, with the values of `per_cluster` for each seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mbt_cli.scores.statistics import (
    NORMAL_95,
    Clusters,
    Floats,
    Interval,
    per_cluster,
    t_quantile,
    t_tail,
    wilson,
)

Piece = tuple[float, float]
"""A part of a variance, negative if it is subtracted, and its degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error and the degrees of freedom of that error."""

    value: float
    error: float
    degrees: float

    def interval(self) -> Interval | None:
        """The 95 % interval by Student's t; None if there is no spread to estimate."""
        if not self.error > 0:
            return None
        half = t_quantile(self.degrees) * self.error
        return Interval(self.value - half, self.value + half)

    def share_interval(self, *, questions: float, samples: float) -> Interval:
        """Wilson's 95 % interval of a share, on the effective number of samples.

        That is m (1 - m) / V, times (1.96 / t)^2, at most the number of samples; at 0 and 1 it is
        the number of questions, for clusters that of `effective_clusters`.
        """
        m, effective = min(max(self.value, 0.0), 1.0), float(questions)
        if 0 < m < 1:
            correction = (NORMAL_95 / t_quantile(self.degrees)) ** 2
            effective = m * (1 - m) / self.error**2 * correction if self.error else samples
        effective = min(max(effective, 1.0), samples)
        return wilson(m * effective, effective)

    def p(self) -> float | None:
        """Two-sided p value of the number being 0; None if there is no spread to estimate."""
        return t_tail(abs(self.value) / self.error, self.degrees) if self.error > 0 else None


def over_seeds(values: Floats, clusters: Clusters | None = None) -> Estimate:
    """The mean over seeds and questions.

    Args:
        values: Shape (seeds, questions), at least two of each.
        clusters: The cluster of each question, at least two; None if questions are independent.
    """
    values = per_cluster(values, clusters)
    return _estimate(float(values.mean()), [_of_questions(values.mean(axis=0)), *_of_seeds(values)])


def difference(
    first: Floats,
    second: Floats,
    clusters: Clusters | None = None,
    *,
    drawn: tuple[bool, bool] = (False, False),
) -> Estimate:
    """The difference of two means on the same questions; each side has its own seeds.

    Args:
        first: Shape (seeds, questions), at least two questions.
        second: Shape (other seeds, questions).
        clusters: The cluster of each question, at least two; None if questions are independent.
        drawn: For each side, whether a single seed stands for others, as one of a training does.
            It then varies as much as a seed of the other side; else it adds no seed variance.
    """
    first, second = per_cluster(first, clusters), per_cluster(second, clusters)
    apart = first.mean(axis=0) - second.mean(axis=0)
    pieces = [_of_questions(apart), *_of_seeds(first), *_of_seeds(second)]
    for one, other, is_drawn in ((first, second, drawn[0]), (second, first, drawn[1])):
        if is_drawn and len(one) == 1:
            pieces += [(square * len(other), degrees) for square, degrees in _of_seeds(other)]
    return _estimate(float(apart.mean()), pieces)


def of_estimates(values: Sequence[float], errors: Sequence[float], *, questions: int) -> Estimate:
    """The mean over seeds of numbers that have no value per question, such as a ratio.

    The variance is that of the seeds' numbers over k plus the mean of their squared errors over
    questions. Both hold the rest of seed and question, so the interval is on the wide side.

    Args:
        values: The number of each seed, at least two.
        errors: Its standard error over questions.
        questions: Number of questions, or of their clusters, at least two.
    """
    found = np.asarray(values, dtype=np.float64)
    seeds = (float(found.var(ddof=1)) / len(found), len(found) - 1.0)
    over_questions = (float(np.square(errors).mean()), questions - 1.0)
    return _estimate(float(found.mean()), [seeds, over_questions])


def _of_questions(means: Floats) -> Piece:
    return float(means.var(ddof=1)) / len(means), len(means) - 1.0


def _of_seeds(values: Floats) -> list[Piece]:
    """What the seeds add to the variance; nothing if they differ no more than by the rest."""
    k, n = values.shape
    if k < 2:
        return []
    seeds, questions = values.mean(axis=1), values.mean(axis=0)
    rest = values - seeds[:, None] - questions[None, :] + values.mean()
    rest_degrees = (k - 1.0) * (n - 1.0)
    between = float(seeds.var(ddof=1)) / k
    noise = float((rest**2).sum()) / rest_degrees / (k * n)
    return [(between, k - 1.0), (-noise, rest_degrees)] if between > noise else []


def _estimate(value: float, pieces: Sequence[Piece]) -> Estimate:
    variance = max(0.0, sum(square for square, _ in pieces))
    spread = sum(square**2 / degrees for square, degrees in pieces)
    return Estimate(value, math.sqrt(variance), variance**2 / spread if spread else math.inf)
