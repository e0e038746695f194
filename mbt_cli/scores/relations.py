"""Relations between numbers: rank correlations, and least squares with clustered errors."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.scores.statistics import Interval, t_quantile, t_tail

Floats = npt.NDArray[np.float64]
Groups = npt.NDArray[np.int64]
_LEAST_PAIRS = 4
_NORMAL = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Correlation:
    """A rank correlation; `interval` is None where it is 1, -1 or of fewer than 4 units."""

    value: float
    interval: Interval | None
    n: int


def ranks(values: Floats) -> Floats:
    """Ranks from 1, equal values with their mean rank.

    Example:
        >>> ranks(np.array([3.0, 1.0, 3.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    return pl.Series(values).rank("average").cast(pl.Float64).to_numpy()


def spearman(x: Floats, y: Floats) -> Correlation | None:
    """Spearman's correlation of independent pairs; None where one side has a single value.

    The interval is Fisher's with the variance (1 + r^2 / 2) / (n - 3) (Bonett and Wright 2000).

    Args:
        x: Values without NaN, shape (pairs,).
        y: In the same shape.
    """
    found = _pearson(ranks(x), ranks(y)) if len(x) > 1 else None
    if found is None:
        return None
    around = None
    if len(x) >= _LEAST_PAIRS and abs(found) < 1 - 1e-12:
        error = math.sqrt((1 + found**2 / 2) / (len(x) - 3))
        around = _fisher(found, _NORMAL * error)
    return Correlation(found, around, len(x))


def clustered_correlation(x: Floats, y: Floats, clusters: Groups) -> Correlation | None:
    """Pearson's correlation of pairs that are not independent within a cluster.

    The interval is Fisher's, from the clustered variance of the correlation's influence function
    and Student's t with a degree less than clusters.

    Args:
        x: Values without NaN, such as ranks, shape (pairs,).
        y: In the same shape.
        clusters: Number of the cluster of each pair, from 0, in the same shape.
    """
    found = _pearson(x, y) if len(x) > 1 else None
    if found is None:
        return None
    sizes = np.bincount(clusters)
    count = int((sizes > 0).sum())
    around = None
    if count >= _LEAST_PAIRS and abs(found) < 1 - 1e-12:
        u, v = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
        moved = np.bincount(clusters, u * v - found / 2 * (u * u + v * v))
        error = math.sqrt(count / (count - 1) * float((moved**2).sum())) / len(x)
        around = _fisher(found, t_quantile(count - 1) * error / (1 - found**2))
    return Correlation(found, around, count)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of values that come in clusters; `interval` is None with a single cluster."""

    value: float
    interval: Interval | None


def clustered_mean(values: Floats, clusters: Groups) -> Mean:
    """The mean of values that are not independent within a cluster.

    The interval is Student's t on the clustered variance, with a degree less than clusters.

    Args:
        values: At least one, without NaN, shape (values,).
        clusters: Number of the cluster of each value, from 0, in the same shape.
    """
    mean = float(values.mean())
    count = len(np.unique(clusters))
    if count < 2:
        return Mean(mean, None)
    moved = np.bincount(clusters, values - mean)
    error = math.sqrt(count / (count - 1) * float((moved**2).sum())) / len(values)
    half = t_quantile(count - 1) * error
    return Mean(mean, Interval(mean - half, mean + half))


def _pearson(x: Floats, y: Floats) -> float | None:
    u, v = x - x.mean(), y - y.mean()
    spread = float((u @ u) * (v @ v))
    if spread <= 1e-18:
        return None
    return float(np.clip(u @ v / math.sqrt(spread), -1, 1))


def _fisher(value: float, half: float) -> Interval:
    z = math.atanh(value)
    return Interval(math.tanh(z - half), math.tanh(z + half))


@dataclass(frozen=True, slots=True)
class Regression:
    """Coefficients of a regression.

    Args:
        coefficients: One per column, shape (columns,).
        errors: Their clustered standard errors, in the same shape.
        p: Two-sided, by Student's t with a degree less than clusters, in the same shape.
        rows: Number of rows.
        clusters: Number of clusters.
        r_squared: Share of the variance that is explained, within the cells if these are fixed.
    """

    coefficients: Floats
    errors: Floats
    p: Floats
    rows: int
    clusters: int
    r_squared: float

    @property
    def width(self) -> float:
        """Standard errors from a coefficient to either end of its 95 % interval."""
        return t_quantile(self.clusters - 1)


def least_squares(
    y: Floats, columns: Floats, clusters: Groups, cells: Groups | None = None
) -> Regression | None:
    """Ordinary least squares with an intercept, or one for each cell, and clustered errors.

    The covariance is that of Liang and Zeger 1986 with statsmodels' correction
    G / (G - 1) * (N - 1) / (N - K), where K counts all intercepts.

    Args:
        y: The outcome without NaN, shape (rows,).
        columns: What it is regressed on, shape (rows, columns).
        clusters: Number of the cluster of each row, shape (rows,).
        cells: Number of the cell of each row, from 0, for fixed effects; None for one intercept.

    Returns:
        None with fewer than 2 clusters, too few rows, or columns that depend on each other.
    """
    one = np.zeros(len(y), np.int64)
    within = one if cells is None else np.unique(cells, return_inverse=True)[1]
    intercepts = int(within.max()) + 1 if len(within) else 0
    rows, parameters = len(y), columns.shape[1] + intercepts
    _, groups = np.unique(clusters, return_inverse=True)
    count = int(groups.max()) + 1 if len(groups) else 0
    if count < 2 or rows <= parameters:
        return None
    sizes = np.bincount(within)

    def apart(values: Floats) -> Floats:
        """Distance from the mean of the cell."""
        return np.asarray(values - (np.bincount(within, values) / sizes)[within])

    x = np.column_stack([apart(column) for column in columns.T])
    d = apart(y)
    scale = np.sqrt((x**2).mean(axis=0))
    if (scale <= 1e-12).any() or np.linalg.matrix_rank(x / scale) < x.shape[1]:
        return None
    inverse = np.linalg.inv((x / scale).T @ (x / scale))
    scaled = inverse @ ((x / scale).T @ d)
    rest = d - (x / scale) @ scaled
    moved = np.column_stack([np.bincount(groups, c * rest, minlength=count) for c in (x / scale).T])
    correction = count / (count - 1) * (rows - 1) / (rows - parameters)
    covariance = correction * inverse @ (moved.T @ moved) @ inverse
    errors = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(scaled / errors)
    p = np.array([t_tail(float(one), count - 1) if np.isfinite(one) else np.nan for one in t])
    total = float(d @ d)
    explained = 1 - float(rest @ rest) / total if total > 0 else math.nan
    return Regression(scaled / scale, errors / scale, p, rows, count, explained)
