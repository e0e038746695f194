"""Coverage of the printed intervals and errors of the tests, by simulated studies.

    python tests/bench/coverage.py [--studies 2000] [--questions 12 50 120 500] [--only NAME]

Each line is one case: the share of studies whose 95 % interval covers the true value, or in which a
test rejects at 5 % though nothing differs. 2,000 studies put a standard error of 0.5 points on it.
"""

import argparse
from collections.abc import Callable, Iterator
from statistics import NormalDist

import numpy as np

from mbt_cli.core.measures import mean_of_value
from mbt_cli.scores.seeds import over_seeds
from mbt_cli.scores.statistics import (
    Floats,
    Interval,
    Quantity,
    bootstrap,
    holm,
    not_worse_than_best,
    paired_p,
    paired_share_interval,
    share_interval,
)

RESAMPLES = 2_000
Covers = Callable[[], bool | None]


def plain(values: Floats) -> Quantity:
    return Quantity({"value": values}, mean_of_value)


def covered(interval: Interval | None, truth: float) -> bool | None:
    return None if interval is None else interval.low <= truth <= interval.high


def studentized(quantity: Quantity, truth: float) -> bool | None:
    return covered(bootstrap([quantity], resamples=RESAMPLES, seed=0)[0].interval(), truth)


def shares(random: np.random.Generator, n: int) -> Iterator[tuple[str, Covers]]:
    """One share; with four samples, questions differ in difficulty (beta, correlation 0.3)."""
    for p in (0.02, 0.1, 0.5, 0.9):
        for k in (1, 4):

            def study(p: float = p, k: int = k) -> bool | None:
                easy = p if k == 1 else random.beta(p * 7 / 3, (1 - p) * 7 / 3, n)
                values = random.binomial(k, easy, n) / k
                return covered(share_interval(values, np.full(n, float(k))), p)

            yield f"share, p = {p}, {k} sample{'s' * (k > 1)}", study


def means(random: np.random.Generator, n: int) -> Iterator[tuple[str, Covers]]:
    """Means and ratios of skewed values."""
    yield (
        "mean, lognormal (sigma 0.5)",
        lambda: studentized(plain(random.lognormal(0, 0.5, n)), np.exp(0.125)),
    )
    yield "mean, exponential", lambda: studentized(plain(random.exponential(1, n)), 1.0)

    def f1() -> bool | None:
        graded = random.beta(2, 2, n)
        values = np.where(random.random(n) < 0.6, random.integers(0, 2, n), graded)
        return studentized(plain(values.astype(float)), 0.5)

    yield "mean, F1 with many 0 and 1", f1

    def cost() -> bool | None:
        right = random.random(n) < 0.6
        tokens = random.lognormal(6 + 0.5 * ~right, 0.6)
        truth = (0.6 * np.exp(6.18) + 0.4 * np.exp(6.68)) / 0.6
        ratio = Quantity(
            {"tokens": tokens, "right": right.astype(float)}, lambda m: m["tokens"] / m["right"]
        )
        return studentized(ratio, truth)

    yield "ratio, tokens per correct", cost

    def mqi() -> bool | None:
        base = random.lognormal(6, 0.6, n)
        tokens = 1.2 * base * random.lognormal(0, 0.3, n)
        level = random.binomial(5, 0.6, n).astype(float)
        index = Quantity(
            {"level": level, "tokens": tokens, "base": base},
            lambda m: m["level"] * m["base"] / m["tokens"],
        )
        return studentized(index, 3 / (1.2 * np.exp(0.045)))

    yield "MQI of means, baseline resampled", mqi


def differences(random: np.random.Generator, n: int) -> Iterator[tuple[str, Covers]]:
    """Paired differences of shares: questions are hard for both sides alike (correlation 0.5)."""
    normal = NormalDist()
    for p, q in ((0.1, 0.1), (0.5, 0.5), (0.9, 0.7)):
        for k in (1, 4):

            def study(p: float = p, q: float = q, k: int = k) -> bool | None:
                common = random.normal(size=n)
                sides = []
                for share in (p, q):
                    latent = 0.7 * common + np.sqrt(0.51) * random.normal(size=n)
                    high = latent < normal.inv_cdf(share)
                    easy = high.astype(float) if k == 1 else np.where(high, 0.9, 0.1)
                    sides.append(random.binomial(k, easy) / k)
                truth = (p - q) * (1.0 if k == 1 else 0.8)
                counts = np.full(n, float(k))
                return covered(paired_share_interval(*sides, counts, counts), truth)

            yield f"difference of shares, {p} and {q}, {k} sample{'s' * (k > 1)}", study

    def skewed() -> bool | None:
        question = random.lognormal(0, 0.5, n)
        apart = question * (random.lognormal(0, 0.5, n) - random.lognormal(0, 0.5, n))
        return studentized(plain(apart), 0.0)

    yield "difference of skewed values", skewed


def trainings(random: np.random.Generator, n: int) -> Iterator[tuple[str, Covers]]:
    """One share of three or five seeds of a training on the same questions.

    Seeds shift the log-odds of a right answer, by 0.2 some 3 points at 50 %, by 0.6 some 10.
    """
    normal = random.normal(size=400_000)
    for seeds in (3, 5):
        for p in (0.05, 0.5):
            for spread in (0.0, 0.2, 0.6):
                odds = np.log(p / (1 - p))
                truth = float((1 / (1 + np.exp(-odds - np.hypot(1.5, spread) * normal))).mean())

                def study(
                    seeds: int = seeds,
                    spread: float = spread,
                    odds: float = odds,
                    truth: float = truth,
                ) -> bool | None:
                    luck = spread * random.normal(size=(seeds, 1))
                    easy = odds + luck + 1.5 * random.normal(size=(1, n))
                    values = (random.random((seeds, n)) < 1 / (1 + np.exp(-easy))).astype(float)
                    found = over_seeds(values)
                    return covered(found.share_interval(questions=n, samples=values.size), truth)

                yield f"share of {seeds} seeds, p = {p}, spread {spread}", study


def tests(random: np.random.Generator, n: int) -> Iterator[tuple[str, Covers]]:
    """Errors of the first kind at 5 %."""

    def rows(count: int, kind: str) -> Floats:
        common, own = random.normal(size=n), random.normal(size=(count, n))
        if kind == "0 / 1":
            return (common + own > 0).astype(float)
        return np.exp(common + 0.5 * own)

    for kind in ("0 / 1", "skewed"):

        def test(kind: str = kind) -> bool | None:
            first, second = rows(2, kind)
            p, _ = paired_p(plain(first), plain(second), seed=int(random.integers(1 << 30)))
            return p is not None and p < 0.05

        yield f"rejects: paired test, {kind} values", test

        def family(kind: str = kind) -> bool | None:
            base, *others = rows(10, kind)
            p = [paired_p(plain(base), plain(one), seed=0)[0] for one in others]
            return any(one is not None and one < 0.05 for one in holm(p))

        yield f"rejects any of 9: Holm, {kind} values", family

        def best(kind: str = kind) -> bool | None:
            return not not_worse_than_best(rows(15, kind), resamples=RESAMPLES, seed=0).all()

        yield f"any of 15 equal rows loses its mark, {kind} values", best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=2_000)
    parser.add_argument("--questions", type=int, nargs="+", default=[12, 50, 120, 500])
    parser.add_argument("--only", default="", help="a part of the names of the cases to run")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    found: dict[str, list[str]] = {}
    for n in options.questions:
        for cases in (shares, means, differences, trainings, tests):
            for name, study in cases(random, n):
                if options.only not in name:
                    continue
                results = [study() for _ in range(options.studies)]
                there = [one for one in results if one is not None]
                found.setdefault(name, []).append(f"{100 * np.mean(there):.1f}" if there else "-")
    sizes = " | ".join(map(str, options.questions))
    lines = [
        f"| {options.studies} studies, per cent; questions: | {sizes} |",
        "|---|" + "--:|" * len(options.questions),
        *(f"| {name} | {' | '.join(values)} |" for name, values in found.items()),
    ]
    print("\n".join(lines))  # noqa: T201


if __name__ == "__main__":
    main()
