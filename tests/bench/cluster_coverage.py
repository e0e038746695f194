"""Coverage of intervals and errors of tests where questions come in clusters, by simulated studies.

    python tests/bench/cluster_coverage.py [--studies 2000] [--clusters 30 100] [--only NAME]

Clusters have 1 to 10 questions and an intra-cluster correlation of 0.3. Each line is one case, as
in tests/bench/coverage.py.
"""

import argparse
from collections.abc import Callable, Iterator
from statistics import NormalDist

import numpy as np

from mbt_cli.core.measures import mean_of_value
from mbt_cli.scores.seeds import difference, over_seeds
from mbt_cli.scores.statistics import (
    Clusters,
    Floats,
    Interval,
    Quantity,
    bootstrap,
    effective_clusters,
    not_worse_than_best,
    paired_p,
    paired_share_interval,
    share_interval,
)

RESAMPLES = 2_000
Covers = Callable[[], bool | None]


def plain(values: Floats, clusters: Clusters) -> Quantity:
    return Quantity({"value": values}, mean_of_value, clusters)


def covered(interval: Interval | None, truth: float) -> bool | None:
    return None if interval is None else interval.low <= truth <= interval.high


def studentized(quantity: Quantity, truth: float) -> bool | None:
    return covered(bootstrap([quantity], resamples=RESAMPLES, seed=0)[0].interval(), truth)


class Clustered:
    """Questions in clusters of 1 to 10 that share a part of what makes them hard."""

    def __init__(self, random: np.random.Generator, count: int) -> None:
        self.random = random
        self.of = np.repeat(np.arange(count), random.integers(1, 11, count))
        self.count, self.n = count, len(self.of)

    def shares(self, p: float) -> Floats:
        """The chance of a right answer, the same in a cluster: correlation 0.3 of 0 / 1 values."""
        return self.random.beta(p * 7 / 3, (1 - p) * 7 / 3, self.count)[self.of]

    def normal(self, rows: int | None = None) -> Floats:
        """Standard normal values with a correlation of 0.3 within clusters."""
        size = (self.count,) if rows is None else (rows, self.count)
        common = self.random.normal(size=size)[..., self.of]
        own = self.random.normal(size=common.shape)
        return np.asarray(np.sqrt(0.3) * common + np.sqrt(0.7) * own)


def shares(random: np.random.Generator, count: int) -> Iterator[tuple[str, Covers]]:
    """Shares and their differences where questions come in clusters."""
    normal = NormalDist()
    for p in (0.1, 0.5, 0.9):
        for k in (1, 4):

            def study(p: float = p, k: int = k) -> bool | None:
                of = Clustered(random, count)
                values = random.binomial(k, of.shares(p)) / k
                return covered(share_interval(values, np.full(of.n, float(k)), of.of), p)

            yield f"share, p = {p}, {k} sample{'s' * (k > 1)}", study
    for p, q in ((0.1, 0.1), (0.5, 0.5), (0.9, 0.7)):

        def apart(p: float = p, q: float = q) -> bool | None:
            of = Clustered(random, count)
            common = of.normal()
            sides = [
                (0.7 * common + np.sqrt(0.51) * of.normal() < normal.inv_cdf(share)).astype(float)
                for share in (p, q)
            ]
            ones = np.ones(of.n)
            return covered(paired_share_interval(*sides, ones, ones, of.of), p - q)

        yield f"difference of shares, {p} and {q}", apart


def means(random: np.random.Generator, count: int) -> Iterator[tuple[str, Covers]]:
    """Means and ratios of skewed values where questions come in clusters."""

    def skewed() -> bool | None:
        of = Clustered(random, count)
        return studentized(plain(np.exp(0.5 * of.normal()), of.of), np.exp(0.125))

    yield "mean, lognormal (sigma 0.5)", skewed

    def larger() -> bool | None:
        of = Clustered(random, count)
        sizes = np.bincount(of.of)[of.of]
        # questions of large clusters are longer: the mean over all is E[s^2] / E[s] = 38.5 / 5.5
        values = sizes * np.exp(0.5 * of.normal() - 0.125)
        return studentized(plain(values, of.of), 7.0)

    yield "mean that grows with the cluster's size", larger

    def cost() -> bool | None:
        of = Clustered(random, count)
        right = random.random(of.n) < of.shares(0.6)
        tokens = np.exp(6 + 0.5 * ~right + 0.6 * of.normal())
        truth = (0.6 * np.exp(6.18) + 0.4 * np.exp(6.68)) / 0.6
        ratio = Quantity(
            {"tokens": tokens, "right": right.astype(float)},
            lambda m: m["tokens"] / m["right"],
            of.of,
        )
        return studentized(ratio, truth)

    yield "ratio, tokens per correct", cost

    def mqi() -> bool | None:
        of = Clustered(random, count)
        base = np.exp(6 + 0.6 * of.normal())
        index = Quantity(
            {
                "level": random.binomial(5, of.shares(0.6)).astype(float),
                "tokens": 1.2 * base * np.exp(0.3 * of.normal()),
                "base": base,
            },
            lambda m: m["level"] * m["base"] / m["tokens"],
            of.of,
        )
        return studentized(index, 3 / (1.2 * np.exp(0.045)))

    yield "MQI of means, baseline resampled", mqi

    def apart() -> bool | None:
        of = Clustered(random, count)
        values = np.exp(0.5 * of.normal()) * (np.exp(0.5 * of.normal()) - np.exp(0.5 * of.normal()))
        return studentized(plain(values, of.of), 0.0)

    yield "difference of skewed values", apart


def tests(random: np.random.Generator, count: int) -> Iterator[tuple[str, Covers]]:
    """Errors of the first kind at 5 %, and several seeds, where questions come in clusters."""

    def rows(of: Clustered, number: int, kind: str) -> Floats:
        common, own = of.normal(), of.normal(number)
        return (common + own > 0).astype(float) if kind == "0 / 1" else np.exp(common + 0.5 * own)

    for kind in ("0 / 1", "skewed"):

        def test(kind: str = kind) -> bool | None:
            of = Clustered(random, count)
            first, second = rows(of, 2, kind)
            p, _ = paired_p(plain(first, of.of), plain(second, of.of), seed=0)
            return p is not None and p < 0.05

        yield f"rejects: paired test, {kind} values", test

        def best(kind: str = kind) -> bool | None:
            of = Clustered(random, count)
            found = not_worse_than_best(
                rows(of, 15, kind), resamples=RESAMPLES, seed=0, clusters=of.of
            )
            return not found.all()

        yield f"any of 15 equal rows loses its mark, {kind} values", best

    for spread in (0.0, 0.2):
        draws = 1 / (1 + np.exp(-np.hypot(1.5, spread) * random.normal(size=400_000)))
        truth = float(draws.mean())

        def seeds(spread: float = spread, truth: float = truth) -> bool | None:
            of = Clustered(random, count)
            odds = 1.5 * of.normal() + spread * random.normal(size=(3, 1))
            values = (random.random((3, of.n)) < 1 / (1 + np.exp(-odds))).astype(float)
            found = over_seeds(values, of.of)
            least = effective_clusters(of.of)
            return covered(found.share_interval(questions=least, samples=values.size), truth)

        yield f"share of 3 seeds, p = 0.5, spread {spread}", seeds

        def seeds_apart(spread: float = spread) -> bool | None:
            of = Clustered(random, count)
            odds = 1.5 * of.normal() + spread * random.normal(size=(6, 1))
            values = (random.random((6, of.n)) < 1 / (1 + np.exp(-odds))).astype(float)
            p = difference(values[:3], values[3:], of.of).p()
            return p is not None and p < 0.05

        yield f"rejects: 3 seeds against 3, spread {spread}", seeds_apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=2_000)
    parser.add_argument("--clusters", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--only", default="", help="a part of the names of the cases to run")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    found: dict[str, list[str]] = {}
    for count in options.clusters:
        for cases in (shares, means, tests):
            for name, study in cases(random, count):
                if options.only not in name:
                    continue
                results = (study() for _ in range(options.studies))
                there = [held for held in results if held is not None]
                found.setdefault(name, []).append(f"{100 * np.mean(there):.1f}" if there else "-")
    print(f"| {options.studies} studies, % | {' | '.join(map(str, options.clusters))} |")  # noqa: T201
    print("|---|" + "--:|" * len(options.clusters))  # noqa: T201
    for name, values in found.items():
        print(f"| {name} | {' | '.join(values)} |")  # noqa: T201


if __name__ == "__main__":
    main()
