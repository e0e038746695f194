"""How fast answers are scored, beside a plain Python loop in the same run, and intervals.

    python tests/bench/scoring.py --data FOLDER [--rows 200000] [--loop-rows 40000]

FOLDER has samples of HotpotQA and MuSiQue in their official layouts. The texts are spans of their
documents, with as many words as their gold answers (1 to 10, 2.5 on average) and as many aliases.
Half of the answers are the gold answer in other case, with an article or with punctuation; a fifth
share words with it, some as a sentence around it; the others are other spans.

    distinct    every row is a question with a gold answer, aliases and an answer of its own
    repeating   8 samples a question, which give at most 3 different answers

Nothing is cached by value: the product scores every row, repeated or not. Rates are rows per
second of processor time over all threads, the median of the repeats.
"""

import argparse
import json
import resource
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from mbt_cli.core.measures import ScoreInputs
from mbt_cli.core.verifier import OfficialScorer
from mbt_cli.interfaces import Score
from mbt_cli.scores.answers import (
    ExactMatch,
    F1Score,
    OfficialExactMatch,
    OfficialF1,
    SubstringMatch,
)
from mbt_cli.scores.at_k import AvgAtK, MajAtK, PassAtK
from mbt_cli.scores.scoring import answer_frame
from mbt_cli.scores.statistics import Quantity, bootstrap
from mbt_cli.verifiers.text import TextVerifier, normalise

SAMPLES = 8
MUSIQUE = OfficialScorer("musique", strict_closed=False, empty_equal=True)
WORDS = (ExactMatch(), SubstringMatch(), F1Score())
ALL = (*WORDS, OfficialExactMatch(), OfficialF1(), AvgAtK(), MajAtK(), PassAtK())
DRESSES = ("{}", "{}.", "the {}", "{} ", '"{}"')
SENTENCES = ("{} {other}", "{other} ({})", "It was {}, {other}", "{first} {other}")


class Spans:
    """Runs of words of real documents, as long as real answers."""

    def __init__(self, folder: Path, random: np.random.Generator) -> None:
        hotpot = json.loads(next(folder.glob("hotpotqa/*.json")).read_text())
        lines = next(folder.glob("musique/*.jsonl")).read_text().splitlines()
        musique = [json.loads(line) for line in lines]
        documents = [text for row in hotpot for _, texts in row["context"] for text in texts]
        documents += [page["paragraph_text"] for row in musique for page in row["paragraphs"]]
        self.words = " ".join(documents).split()
        self.lengths = [len(row["answer"].split()) for row in hotpot + musique]
        self.aliases = [len(row["answer_aliases"]) for row in musique]
        self.random = random

    def draw(self, count: int) -> list[str]:
        starts = self.random.integers(0, len(self.words) - max(self.lengths), count)
        lengths = self.random.choice(self.lengths, count)
        both = zip(starts.tolist(), lengths.tolist(), strict=True)
        return [" ".join(self.words[start : start + length]) for start, length in both]


def made_rollouts(spans: Spans, rows: int, *, samples: int, different: int) -> pl.DataFrame:
    """Rollouts of `rows // samples` questions with `different` answers each, drawn per sample."""
    random, questions = spans.random, rows // samples
    gold, others = spans.draw(questions), spans.draw(questions * different)
    answers = np.array(
        [
            [
                answer_of(gold[q], others[q * different + i], random.random(3))
                for i in range(different)
            ]
            for q in range(questions)
        ]
    )
    chosen = random.integers(0, different, (questions, samples))
    counts = random.choice(spans.aliases, questions).tolist()
    per_question = pl.DataFrame(
        {
            "question_id": [f"2hop__{i * 7919 % 1000003}_{i}" for i in range(questions)],
            "gold_answer": gold,
            "gold_aliases": [spans.draw(count) for count in counts],
        },
        schema_overrides={"gold_aliases": pl.List(pl.String)},
    )
    return per_question[np.repeat(np.arange(questions), samples)].with_columns(
        sample=pl.Series(np.tile(np.arange(samples), questions)),
        answer=pl.Series(np.take_along_axis(answers, chosen, axis=1).reshape(-1).tolist()),
        failure=pl.lit(None, pl.String),
    )


def answer_of(gold: str, other: str, luck: np.ndarray) -> str:
    kind, form, case = luck
    if kind < 0.5:
        text = gold.lower() if case < 0.2 else gold.upper() if case < 0.25 else gold
        return DRESSES[int(form * len(DRESSES))].format(text)
    if kind < 0.7:
        sentence = SENTENCES[int(form * len(SENTENCES))]
        return sentence.format(gold, other=other, first=gold.split()[0])
    return other


def loop_scores(rows: list[dict]) -> list[tuple[float, float, float]]:
    """Exact match, substring match and F1 of each row, one row at a time."""
    scored = []
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
        scored.append(tuple(best))
    return scored


def rate(rollouts: pl.DataFrame, scores: Sequence[Score], repeats: int) -> str:
    seconds, processor = [], []
    for _ in range(repeats):
        inputs = ScoreInputs(rollouts, TextVerifier(), official=MUSIQUE)
        start, used = time.perf_counter(), time.process_time()
        measures = [measure for score in scores for measure in score.measure(inputs)]
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    per_second, per_processor = (len(rollouts) / np.median(x) for x in (seconds, processor))
    return (
        f"{len(measures)} metrics, {per_processor:,.0f} rows per processor second,"
        f" {per_second:,.0f} per second"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--loop-rows", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()

    spans = Spans(arguments.data, np.random.default_rng(1))
    for name, samples, different in (("distinct", 1, 1), ("repeating", SAMPLES, 3)):
        rollouts = made_rollouts(spans, arguments.rows, samples=samples, different=different)
        pairs = rollouts.select("gold_answer", "answer").unique().height
        length = rollouts["answer"].str.len_chars().mean()
        aliases = rollouts["gold_aliases"].list.len().mean()
        print(  # noqa: T201
            f"{name}: {len(rollouts):,} rows, {pairs:,} distinct (gold answer, answer) pairs,"
            f" {length:.1f} characters an answer, {aliases:.2f} aliases"
        )
        few = rollouts.sample(arguments.loop_rows, seed=1)
        used = time.process_time()
        looped = loop_scores(few.to_dicts())
        used = time.process_time() - used
        found = answer_frame(ScoreInputs(few, TextVerifier(), official=MUSIQUE))
        assert found.select("exact_match", "substring_match", "f1_score").rows() == looped
        print(f"  loop: 3 metrics, {len(few) / used:,.0f} rows per processor second")  # noqa: T201
        for scores in (WORDS, ALL):
            print(f"  mbt: {rate(rollouts, scores, arguments.repeats)}")  # noqa: T201
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024:,} MiB")  # noqa: T201

    random = np.random.default_rng(0)
    quantities = [
        Quantity({"value": random.random(12_576)}, lambda means: means["value"]) for _ in range(10)
    ]
    start = time.perf_counter()
    bootstrap(quantities, resamples=10_000, seed=1)
    seconds = time.perf_counter() - start
    print(f"bootstrap: 10 metrics x 12,576 questions x 10,000 resamples in {seconds:.2f} s")  # noqa: T201


if __name__ == "__main__":
    main()
