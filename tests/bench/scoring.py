"""How fast a million rollouts are scored, beside a plain Python loop, and how long intervals take.

    python tests/bench/scoring.py [--rows 1000000] [--loop-rows 40000]

The rollouts are made by rule: 8 samples a question, one gold answer and 0, 1 or 2 aliases (0.75
on average). Half of the samples give the gold answer, some in other case or with an article; the
others are wrong answers of 1 to 4 words drawn for that row alone. Printed with the rates: how
many distinct (question, answer) pairs there are, so how much repeats. Nothing is cached by value:
the product scores every row, repeated or not.
"""

import argparse
import resource
import time
from collections import Counter, defaultdict

import numpy as np
import polars as pl

from mbt_cli.core.measures import ScoreInputs
from mbt_cli.core.verifier import OfficialScorer
from mbt_cli.scores.answers import (
    ExactMatch,
    F1Score,
    OfficialExactMatch,
    OfficialF1,
    SubstringMatch,
)
from mbt_cli.scores.at_k import AvgAtK, MajAtK, PassAtK
from mbt_cli.scores.statistics import Quantity, bootstrap
from mbt_cli.verifiers.text import TextVerifier, normalise

SAMPLES = 8
MUSIQUE = OfficialScorer("musique", strict_closed=False, empty_equal=True)
SCORES = (
    ExactMatch(),
    SubstringMatch(),
    F1Score(),
    OfficialExactMatch(),
    OfficialF1(),
    AvgAtK(),
    MajAtK(),
    PassAtK(),
)


def made_rollouts(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    words = np.array([f"Name{i}" for i in range(5000)] + ["of", "the", "St.", "New", "d'Or"] * 100)

    def texts(count: int) -> np.ndarray:
        picked = words[random.integers(0, len(words), (count, 4))]
        length = random.integers(1, 5, count)
        return np.array(
            [" ".join(p[:n]) for p, n in zip(picked.tolist(), length.tolist(), strict=True)],
            dtype=object,
        )

    questions = rows // SAMPLES
    gold = texts(questions)
    number = np.repeat(np.arange(questions), SAMPLES)
    answer = texts(rows)
    right = random.random(rows) < 0.5
    dressed = np.where(random.random(rows) < 0.2, "the ", "") + gold[number]
    answer[right] = dressed[right]
    aliases = texts(2 * questions).reshape(-1, 2).tolist()
    keep = random.choice([0, 0, 1, 2], questions).tolist()
    per_question = pl.DataFrame(
        {
            "question_id": [f"2hop__{i}_{i * 7919 % 1000003}" for i in range(questions)],
            "gold_answer": gold,
            "gold_aliases": [some[:n] for some, n in zip(aliases, keep, strict=True)],
        },
        schema_overrides={"gold_answer": pl.String, "gold_aliases": pl.List(pl.String)},
    )
    return per_question[number].with_columns(
        sample=pl.Series(np.tile(np.arange(SAMPLES), questions)),
        answer=pl.Series(answer, dtype=pl.String),
        failure=pl.lit(None, pl.String),
    )


def loop_scores(rows: list[dict]) -> dict[str, float]:
    """The published way: one row at a time, then lists per question."""
    scored = defaultdict(list)
    for row in rows:
        given = normalise(row["answer"])
        best = [0.0] * 3
        for reference in (row["gold_answer"], *row["gold_aliases"]):
            wanted = normalise(reference)
            shared = sum((Counter(given.split()) & Counter(wanted.split())).values())
            total = len(given.split()) + len(wanted.split())
            f1 = 2 * shared / total if shared else 0.0
            one = (float(given == wanted), float(wanted in given), f1) if given else (0.0,) * 3
            best = [max(a, b) for a, b in zip(best, one, strict=True)]
        scored[row["question_id"]].append((row["sample"], row["answer"], *best))
    numbers = defaultdict(list)
    for samples in scored.values():
        samples.sort()
        for k in (1, 2, 4, 8):
            first = samples[:k]
            for i, name in ((2, "exact_match"), (3, "substring_match"), (4, "f1_score")):
                numbers[f"{name}_avg@{k}"].append(sum(s[i] for s in first) / k)
            answer = Counter(s[1] for s in first).most_common(1)[0][0]
            numbers[f"maj@{k}"].append(next(s[2] for s in first if s[1] == answer))
            right, left = sum(s[2] == 1 for s in samples), 1.0
            for j in range(k):
                left *= max(len(samples) - right - j, 0) / (len(samples) - j)
            numbers[f"pass@{k}"].append(1 - left)
    return {name: sum(values) / len(values) for name, values in numbers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--loop-rows", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    rollouts = made_rollouts(arguments.rows, seed=1)
    pairs = rollouts.select("question_id", "answer").unique().height
    print(f"{len(rollouts):,} rows, {pairs:,} distinct (question, answer) pairs")  # noqa: T201
    for _ in range(arguments.repeats):
        start, used = time.perf_counter(), time.process_time()
        inputs = ScoreInputs(rollouts, TextVerifier(), official=MUSIQUE)
        measures = [measure for score in SCORES for measure in score.measure(inputs)]
        seconds, cpu = time.perf_counter() - start, time.process_time() - used
        print(  # noqa: T201
            f"mbt: {len(measures)} metrics in {seconds:.2f} s ({cpu:.2f} s of processor),"
            f" {len(rollouts) / seconds:,.0f} rows/s, peak {peak_mib():,} MiB"
        )

    few = rollouts.head(arguments.loop_rows).to_dicts()
    start = time.perf_counter()
    looped = loop_scores(few)
    seconds = time.perf_counter() - start
    print(f"loop: {len(few):,} rows, {len(few) / seconds:,.0f} rows/s (one process)")  # noqa: T201
    inputs = ScoreInputs(rollouts.head(arguments.loop_rows), TextVerifier(), official=MUSIQUE)
    found = {m.metric: m.questions["value"].mean() for s in SCORES for m in s.measure(inputs)}
    for ours, theirs in (("avg@8", "exact_match_avg@8"), ("pass@4", "pass@4")):
        assert abs(found[ours] - looped[theirs]) < 1e-9, (ours, found[ours], looped[theirs])

    random = np.random.default_rng(0)
    quantities = [
        Quantity({"value": random.random(12_576)}, lambda means: means["value"]) for _ in range(10)
    ]
    start = time.perf_counter()
    bootstrap(quantities, resamples=10_000, seed=1)
    seconds = time.perf_counter() - start
    print(f"bootstrap: 10 metrics x 12,576 questions x 10,000 resamples in {seconds:.2f} s")  # noqa: T201


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
