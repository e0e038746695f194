"""Coverage of the printed intervals and errors of the tests, by simulated studies.

    python tests/bench/coverage.py [--studies 2000] [--questions 12 50 120 500] [--only NAME]
        [--lines FILE]

Each line is one case: the share of studies whose 95 % interval covers the true value, or in which a
test rejects at 5 % though nothing differs. 2,000 studies put a standard error of 0.5 points on it;
shares with one sample a question are summed over all outcomes and have none. FILE gets each case
when it is done. All cases take 20 minutes of one core.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from mbt_cli.core.measures import mean_of_value
from mbt_cli.scores.over_benchmarks import mean_interval, stratified, weighted
from mbt_cli.scores.seeds import over_seeds
from mbt_cli.scores.statistics import (
    Floats,
    Interval,
    Quantity,
    Resampled,
    bootstrap,
    holm,
    not_worse_than_best,
    paired_p,
    paired_share_interval,
    share_interval,
    t_tail,
)

NORMAL = NormalDist()
RESAMPLES = 2_000
AT_ONCE = 100
"""Studies that share their bootstrap resamples."""
Study = Callable[[], bool | None]
Share = Callable[[int], float | None]
"""Share of a number of studies, of those that have an interval; None if none has."""
BOUNDS = {"interval": (93.0, 98.0), "test": (0.0, 6.0), "family": (0.0, 6.5)}
"""What a case may be, per cent, by its kind."""


def plain(values: Floats) -> Quantity:
    return Quantity({"value": values}, mean_of_value)


def covered(interval: Interval | None, truth: float) -> bool | None:
    return None if interval is None else interval.low <= truth <= interval.high


def mean(found: Sequence[bool | None]) -> float | None:
    there = [one for one in found if one is not None]
    return float(np.mean(there)) if there else None


def each(study: Study) -> Share:
    return lambda studies: mean([study() for _ in range(studies)])


def studentized(
    draw: Callable[[], Quantity],
    truth: float,
    interval: Callable[[Resampled], Interval | None] = Resampled.interval,
) -> Share:
    """Studies of quantities that a draw makes, which get their resamples in batches."""

    def share(studies: int) -> float | None:
        found: list[bool | None] = []
        for start in range(0, studies, AT_ONCE):
            quantities = [draw() for _ in range(min(AT_ONCE, studies - start))]
            drawn = bootstrap(quantities, resamples=RESAMPLES, seed=start)
            found += [covered(interval(one), truth) for one in drawn]
        return mean(found)

    return share


def exact(p: float, n: int) -> float:
    """Coverage of a share of n questions with one sample each, over all outcomes."""
    chances = [math.comb(n, right) * p**right * (1 - p) ** (n - right) for right in range(n + 1)]
    intervals = [
        share_interval((np.arange(n) < right).astype(float), np.ones(n)) for right in range(n + 1)
    ]
    return sum(c for c, one in zip(chances, intervals, strict=True) if one.low <= p <= one.high)


def shares(random: np.random.Generator, n: int) -> Iterator[tuple[str, Share]]:
    """One share; with four samples, questions differ in difficulty (beta, correlation 0.3)."""
    for p in (0.02, 0.1, 0.5, 0.9):
        yield f"share, p = {p}, 1 sample", lambda _, p=p: exact(p, n)

        def study(p: float = p) -> bool | None:
            easy = random.beta(p * 7 / 3, (1 - p) * 7 / 3, n)
            return covered(share_interval(random.binomial(4, easy, n) / 4, np.full(n, 4.0)), p)

        yield f"share, p = {p}, 4 samples", each(study)


def means(random: np.random.Generator, n: int) -> Iterator[tuple[str, Share]]:
    """Means and ratios of skewed values."""
    yield (
        "mean, lognormal (sigma 0.5)",
        studentized(lambda: plain(random.lognormal(0, 0.5, n)), np.exp(0.125)),
    )
    yield "mean, exponential", studentized(lambda: plain(random.exponential(1, n)), 1.0)

    def f1() -> Quantity:
        graded = random.beta(2, 2, n)
        values = np.where(random.random(n) < 0.6, random.integers(0, 2, n), graded)
        return plain(values.astype(float))

    yield "mean, F1 with many 0 and 1", studentized(f1, 0.5)

    def cost() -> Quantity:
        right = random.random(n) < 0.6
        tokens = random.lognormal(6 + 0.5 * ~right, 0.6)
        return Quantity(
            {"tokens": tokens, "right": right.astype(float)}, lambda m: m["tokens"] / m["right"]
        )

    truth = (0.6 * np.exp(6.18) + 0.4 * np.exp(6.68)) / 0.6
    yield "ratio, tokens per correct", studentized(cost, truth)

    def mqi() -> Quantity:
        base = random.lognormal(6, 0.6, n)
        tokens = 1.2 * base * random.lognormal(0, 0.3, n)
        level = random.binomial(5, 0.6, n).astype(float)
        return Quantity(
            {"level": level, "tokens": tokens, "base": base},
            lambda m: m["level"] * m["base"] / m["tokens"],
        )

    yield "MQI of means, baseline resampled", studentized(mqi, 3 / (1.2 * np.exp(0.045)))


def differences(random: np.random.Generator, n: int) -> Iterator[tuple[str, Share]]:
    """Paired differences of shares: questions are hard for both sides alike (correlation 0.5)."""
    for p, q in ((0.1, 0.1), (0.5, 0.5), (0.9, 0.7)):
        for k in (1, 4):

            def study(p: float = p, q: float = q, k: int = k) -> bool | None:
                common = random.normal(size=n)
                sides = []
                for share in (p, q):
                    latent = 0.7 * common + np.sqrt(0.51) * random.normal(size=n)
                    high = latent < NORMAL.inv_cdf(share)
                    easy = high.astype(float) if k == 1 else np.where(high, 0.9, 0.1)
                    sides.append(random.binomial(k, easy) / k)
                truth = (p - q) * (1.0 if k == 1 else 0.8)
                counts = np.full(n, float(k))
                return covered(paired_share_interval(*sides, counts, counts), truth)

            yield f"difference of shares, {p} and {q}, {k} sample{'s' * (k > 1)}", each(study)

    for times in (1.0, 1.5):

        def skewed(times: float = times) -> Quantity:
            question = random.lognormal(0, 0.5, n)
            own, base = random.lognormal(0, 0.5, (2, n))
            return plain(question * (times * own - base))

        truth = (times - 1) * np.exp(0.25)
        name = f"difference of skewed values, one {times} times the other"
        yield name, studentized(skewed, truth, Resampled.interval_of_difference)


def trainings(random: np.random.Generator, n: int) -> Iterator[tuple[str, Share]]:
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

                yield f"share of {seeds} seeds, p = {p}, spread {spread}", each(study)


def over_benchmarks(random: np.random.Generator, n: int) -> Iterator[tuple[str, Share]]:
    """Means over three benchmarks, of n, 2 n and 4 n questions, in which each counts once."""
    sizes = (n, 2 * n, 4 * n)
    strata = np.repeat(np.arange(3), sizes)

    for name, parts in (("2 %", (0.02,) * 3), ("10, 50 and 90 %", (0.1, 0.5, 0.9))):

        def share(parts: tuple[float, ...] = parts) -> bool | None:
            drawn = [
                (random.random(m) < p).astype(float) for m, p in zip(sizes, parts, strict=True)
            ]
            ends = [share_interval(values, np.ones(len(values))) for values in drawn]
            return covered(mean_interval([v.mean() for v in drawn], ends), float(np.mean(parts)))

        yield f"mean over benchmarks, shares of {name}", each(share)

    def lengths(studies: int) -> float | None:
        scales = (1.0, 2.0, 4.0)
        found: list[bool | None] = []
        for start in range(0, studies, AT_ONCE):
            drawn = [
                [plain(scale * random.lognormal(0, 0.5, m)) for _ in range(AT_ONCE)]
                for m, scale in zip(sizes, scales, strict=True)
            ]
            resampled = [bootstrap(one, resamples=RESAMPLES, seed=start) for one in drawn]
            for one in zip(*resampled, strict=True):
                ends = [part.interval() for part in one]
                assert all(end is not None for end in ends)
                interval = mean_interval([part.value for part in one], [e for e in ends if e])
                found.append(covered(interval, float(np.mean(scales)) * np.exp(0.125)))
        return mean(found)

    yield "mean over benchmarks, lognormal of three scales", lengths

    def paired() -> bool | None:
        ends, values = [], []
        for m, (p, q) in zip(sizes, ((0.3, 0.2), (0.5, 0.5), (0.9, 0.8)), strict=True):
            common = random.normal(size=m)
            latent = 0.7 * common + np.sqrt(0.51) * random.normal(size=(2, m))
            own, base = (latent < np.array([[NORMAL.inv_cdf(p)], [NORMAL.inv_cdf(q)]])).astype(
                float
            )
            ends.append(paired_share_interval(own, base, np.ones(m), np.ones(m)))
            values.append(float(own.mean() - base.mean()))
        return covered(mean_interval(values, ends), 0.2 / 3)

    yield "difference of means over benchmarks, shares", each(paired)

    normal = random.normal(size=400_000)
    odds = np.array([-2.0, 0.0, 1.0])
    for spread in (0.0, 0.2, 0.6):
        truth = np.mean([1 / (1 + np.exp(-o - np.hypot(1.5, spread) * normal)) for o in odds])

        def seeds(spread: float = spread, truth: float = float(truth)) -> bool | None:
            luck = spread * random.normal(size=(3, 1))  # a good seed is good on all benchmarks
            easy = odds[strata] + luck + 1.5 * random.normal(size=(1, len(strata)))
            values = (random.random(easy.shape) < 1 / (1 + np.exp(-easy))).astype(float)
            found = over_seeds(stratified(values, strata))
            interval = found.share_interval(questions=len(strata), samples=values.size)
            return covered(interval, truth)

        yield f"mean over benchmarks of 3 seeds, spread {spread}", each(seeds)

    def rows(count: int) -> Floats:
        common, own = random.normal(size=len(strata)), random.normal(size=(count, len(strata)))
        return (common + own > strata - 1).astype(float)

    def test() -> bool | None:
        first, second = (plain(values) for values in weighted(rows(2), strata))
        p, _ = paired_p(first, second, seed=int(random.integers(1 << 30)))
        return p is not None and p < 0.05

    yield "rejects: paired test of means over benchmarks", each(test)

    def best() -> bool | None:
        seed = int(random.integers(1 << 30))
        values = stratified(rows(15), strata)
        return not not_worse_than_best(values, resamples=RESAMPLES, seed=seed).all()

    yield "any of 15 equal means over benchmarks loses its mark", each(best)


def tests(random: np.random.Generator, n: int) -> Iterator[tuple[str, Share]]:
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

        yield f"rejects: paired test, {kind} values", each(test)

        def family(kind: str = kind) -> bool | None:
            base, *others = rows(10, kind)
            seed = int(random.integers(1 << 30))
            p = [
                # a p above 5 / 9 % rejects nothing: do not permute where it is far from that
                1.0 if t_p(base, one) > 0.1 else paired_p(plain(base), plain(one), seed=seed)[0]
                for one in others
            ]
            return any(one is not None and one < 0.05 for one in holm(p))

        yield f"rejects any of 9: Holm, {kind} values", each(family)

        def best(kind: str = kind) -> bool | None:
            seed = int(random.integers(1 << 30))
            return not not_worse_than_best(rows(15, kind), resamples=RESAMPLES, seed=seed).all()

        yield f"any of 15 equal rows loses its mark, {kind} values", each(best)


def t_p(first: Floats, second: Floats) -> float:
    apart = first - second
    error = apart.std(ddof=1) / math.sqrt(len(apart))
    return t_tail(abs(apart.mean()) / error, len(apart) - 1) if error else 1.0


def kind_of(name: str) -> str:
    if "any of" in name:
        return "family"
    return "test" if name.startswith("rejects") else "interval"


GROUPS = {shares: "a share", means: "means and ratios", differences: "paired differences"}
GROUPS |= {trainings: "a share of several seeds", tests: ""}
GROUPS |= {over_benchmarks: "means over benchmarks"}
KINDS = {"interval": "interval of", "test": "paired test", "family": "family of tests"}


def table(title: str, found: dict[str, dict[int, str]], sizes: Sequence[int]) -> str:
    """Markdown: a row for each name, a column for each number of questions."""
    head = [f"| {title} | {' | '.join(map(str, sizes))} |", "|---|" + "--:|" * len(sizes)]
    rows = [
        f"| {name} | {' | '.join(values.get(n, '-') for n in sizes)} |"
        for name, values in found.items()
    ]
    return "\n".join([*head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=2_000)
    parser.add_argument("--questions", type=int, nargs="+", default=[12, 50, 120, 500])
    parser.add_argument("--only", default="", help="a part of the names of the cases to run")
    parser.add_argument("--lines", type=Path, help="file for a line of JSON a case")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    found: dict[str, dict[int, float]] = {}
    groups: dict[str, dict[int, list[float]]] = {}
    for n in options.questions:
        for cases, group in GROUPS.items():
            for name, share in cases(random, n):
                if options.only not in name:
                    continue
                value = share(options.studies)
                if options.lines:
                    with options.lines.open("a") as file:
                        file.write(
                            json.dumps({"case": name, "questions": n, "share": value}) + "\n"
                        )
                if value is None:
                    continue
                found.setdefault(name, {})[n] = 100 * value
                whole = f"{KINDS[kind_of(name)]} {group}".strip()
                groups.setdefault(whole, {}).setdefault(n, []).append(100 * value)
    outside = {
        name: {
            n: f"{value:.1f}"
            for n, value in values.items()
            if not BOUNDS[kind_of(name)][0] <= round(value, 1) <= BOUNDS[kind_of(name)][1]
        }
        for name, values in found.items()
    }
    ranges = {
        group: {n: f"{min(values):.1f} to {max(values):.1f}" for n, values in by_size.items()}
        for group, by_size in groups.items()
    }
    whole = {name: {n: f"{v:.1f}" for n, v in values.items()} for name, values in found.items()}
    title = f"{options.studies:,} studies a case, per cent; questions:"
    print(table(title, whole, options.questions))  # noqa: T201
    print("\n" + table("ranges", ranges, options.questions))  # noqa: T201
    wrong = {name: values for name, values in outside.items() if values}
    print("\n" + table("outside the bounds", wrong, options.questions))  # noqa: T201


if __name__ == "__main__":
    main()
