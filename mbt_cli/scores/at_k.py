"""Scores over k samples of a question: their mean, the chance of a right one, the majority."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.verifier import Verifier
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Samples, Values
from mbt_cli.scores.scoring import (
    Accuracy,
    accuracy_values,
    judges_behind,
    samples,
    verifier_behind,
    votes,
)
from mbt_cli.scores.statistics import is_binary

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SampleCounts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
"""Values of k, each at least 1."""

_FEW = 32  # samples per question up to which all pairs are compared


def powers_of_two(samples: Samples) -> list[int]:
    """1, 2, 4, ... up to the fewest samples of a question."""
    fewest = int(samples.counts().min())
    return [1 << power for power in range(fewest.bit_length())]


def checked_k(samples: Samples, wanted: Sequence[int] | None) -> list[int]:
    """The values of k to compute: those wanted, by default `powers_of_two`.

    Raises:
        StageError: A wanted k is larger than the number of samples of a question.
    """
    if not len(samples.ids):
        return []
    if wanted is None:
        return powers_of_two(samples)
    counts = samples.counts()
    fewest = int(counts.min())
    if wanted and max(wanted) > fewest:
        question = samples.ids[int(counts.argmin())]
        raise StageError(
            f"k = {max(wanted)} exceeds the samples per question: `{question}` has {fewest}",
            hint=f"raise `samples` on the rollout stage, or set `k` to at most {fewest}",
        )
    return sorted(set(wanted))


def avg_at_k(samples: Samples, scores: Values, k: int) -> Values:
    """Mean score of the first k samples, shape (questions,); NaN if all of them failed."""
    size = len(samples.ids)
    live = (samples.rank < k) & ~np.isnan(scores)
    count = np.bincount(samples.question[live], minlength=size)
    total = np.bincount(samples.question[live], weights=scores[live], minlength=size)
    mean: Values = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return mean


def pass_at_k(samples: Samples, scores: Values, k: int) -> Values:
    """Chance that one of k samples drawn without replacement is right, per question.

    1 - C(n - c, k) / C(n, k), with n samples that have a score, c of which score exactly 1: the
    unbiased estimate of arXiv 2107.03374. NaN if fewer than k samples have a score.
    """
    size = len(samples.ids)
    has = ~np.isnan(scores)
    n = np.bincount(samples.question[has], minlength=size)
    right = np.bincount(samples.question[scores == 1.0], minlength=size)
    # C(n - c, k) / C(n, k) is the product over j < k of (n - c - j) / (n - j)
    none_right = np.ones(size)
    for j in range(k):  # one at a time: a hundred thousand questions by 128 would take gigabytes
        none_right *= np.maximum(n - right - j, 0) / np.maximum(n - j, 1)
    return np.where(n >= k, 1.0 - none_right, np.nan)


@dataclass(frozen=True, slots=True)
class Ballots:
    """Which samples of a question have the same answer.

    Args:
        answer: Number of each row's answer, shape (rows,), an index into `question`; equal for the
            same answer to the same question.
        question: The question of each answer number, ascending; some numbers are unused.
    """

    answer: Counts
    question: Counts


def ballots(samples: Samples, answers: pl.Series) -> Ballots:
    """Find equal answers among each question's samples; `answers` are texts without nulls.

    Few samples, equally many per question, are compared in pairs, by a hash that is checked
    afterwards. Otherwise (question, answer) pairs are ranked, which is slower and always works.
    """
    widest = int(samples.counts().max(initial=0))
    places = len(samples.ids) * widest
    if widest <= _FEW and places <= 2 * len(answers):
        cast = _ballots_by_place(samples, answers, widest)
        if (answers == answers.gather(cast.first_row)).all():
            return Ballots(cast.answer, np.repeat(np.arange(len(samples.ids)), widest))
    pairs = pl.DataFrame({"question": samples.question, "answer": answers})
    number = pairs.select(pl.struct("question", "answer").rank("dense")).to_series().to_numpy()
    answer = number.astype(np.int64) - 1
    question = np.zeros(answer.max(initial=-1) + 1, np.int64)
    question[answer] = samples.question
    return Ballots(answer, question)


@dataclass(frozen=True, slots=True)
class _ByPlace:
    answer: Counts
    first_row: Counts  # the first row whose answer has the same hash


def _ballots_by_place(samples: Samples, answers: pl.Series, widest: int) -> _ByPlace:
    place = samples.question * widest + samples.rank
    row = np.full(len(samples.ids) * widest, -1)
    row[place] = np.arange(len(place))
    hashed = answers.hash().to_numpy()[row].reshape(-1, widest)
    is_row = (row >= 0).reshape(-1, widest)
    first = np.tile(np.arange(widest), (len(samples.ids), 1))
    for late in range(1, widest):
        for early in range(late - 1, -1, -1):
            same = (hashed[:, late] == hashed[:, early]) & is_row[:, late] & is_row[:, early]
            first[same, late] = early
    answer = samples.question * widest + first.reshape(-1)[place]
    return _ByPlace(answer, row[answer])


def maj_at_k(samples: Samples, cast: Ballots, scores: Values, may_vote: Values, k: int) -> Values:
    """Score of each question's most frequent answer among its first k samples, shape (questions,).

    Args:
        samples: Which question and sample each row is.
        cast: The rows' answers.
        scores: One score per row; NaN if it failed.
        may_vote: Whether the row has an answer to vote with.
        k: How many samples vote.

    Returns:
        0 if no sample has an answer, NaN if all k failed.
    """
    size = len(samples.ids)
    live = (samples.rank < k) & ~np.isnan(scores)
    voting = live & may_vote.astype(bool)
    votes = np.bincount(cast.answer[voting], minlength=len(cast.question))
    total = np.bincount(cast.answer[voting], weights=scores[voting], minlength=len(cast.question))
    score = np.divide(total, votes, out=np.zeros(len(votes)), where=votes > 0)
    starts = np.searchsorted(cast.question, np.arange(size))
    most = np.maximum.reduceat(votes, starts)[cast.question]
    winner = (votes == most) & (votes > 0)
    winners = np.bincount(cast.question[winner], minlength=size)
    value = np.bincount(cast.question[winner], weights=score[winner], minlength=size)
    value = np.divide(value, winners, out=np.zeros(size), where=winners > 0)
    any_live = np.bincount(samples.question[live], minlength=size) > 0
    return np.where(any_live, value, np.nan)


def maj_at_k_published(samples: Samples, cast: Ballots, scores: Values, k: int) -> Values:
    """The published form, shape (questions,); NaN if all of the first k samples failed."""
    value = np.full(len(samples.ids), np.nan)
    live = np.flatnonzero((samples.rank < k) & ~np.isnan(scores))
    votes = np.bincount(cast.answer[live], minlength=len(cast.question))
    # most votes first, then the earliest sample: distinct within a question
    key = votes[cast.answer[live]] * k - samples.rank[live]
    best = np.full(len(samples.ids), np.iinfo(np.int64).min)
    np.maximum.at(best, samples.question[live], key)
    winner = live[key == best[samples.question[live]]]
    value[samples.question[winner]] = scores[winner]
    return value


class _AtK(Score):
    """A number over k samples of each question, for several k."""

    of: Accuracy = "exact_match"
    """The measure that says how right an answer is."""
    k: SampleCounts | None = None
    """Numbers of samples; by default 1, 2, 4, ... up to the fewest that a question has."""

    def verifier(self, own: Verifier) -> Verifier | None:
        return verifier_behind(self.of, own)

    def needs(self) -> Collection[str]:
        return judges_behind(self.of)

    def collides(self, other: Score) -> bool:
        if not isinstance(other, _AtK) or other.kind != self.kind or other.of != self.of:
            return False
        return self.k is None or other.k is None or not {*self.k}.isdisjoint(other.k)

    def makes(self, metric: str) -> bool:
        name, _, k = metric.rpartition("@")
        own = at_k_name(self.kind.removesuffix("_at_k"), 0, self.of).removesuffix("@0")
        is_k = k.isdecimal() and (self.k is None or int(k) in self.k)
        return metric == self.kind or (name.startswith(own) and is_k)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        scores = accuracy_values(inputs, self.of)
        if scores is None:
            return []
        rows = samples(inputs)
        is_right_or_wrong = is_binary(scores[~np.isnan(scores)])
        return [
            replace(
                _measure(inputs, at_k_name(name, k, self.of), values, scores, among, self.of),
                binary=k == 1 and is_right_or_wrong,  # the share of right samples
            )
            for k in checked_k(rows, self.k)
            for name, values, among in self.numbers(inputs, rows, scores, k)
        ]

    @abstractmethod
    def numbers(
        self, inputs: ScoreInputs, rows: Samples, scores: Values, k: int
    ) -> Iterator[tuple[str, Values, Flags]]:
        """Name, one value per question, and the rollouts that it is computed from."""


class AvgAtK(_AtK):
    """Mean score of the first k samples of each question: `avg@1`, `avg@2`, `avg@4`, ...

    Formula: mean over questions of the mean score of the k samples with the lowest numbers.
    Unit: per cent.
    Reads: rollouts `sample` and what `of` reads.
    No answer, also an empty reply: 0. No reply: no value among the k, counted; a question without
    any reply among the k has no value.
    Known holes: avg@k of a small k is one draw of few samples; the mean over all samples
    (`exact_match`) varies less. A k above the number of samples is an error.
    """

    kind: Literal["avg_at_k"] = "avg_at_k"

    def numbers(
        self, inputs: ScoreInputs, rows: Samples, scores: Values, k: int
    ) -> Iterator[tuple[str, Values, Flags]]:
        yield "avg", avg_at_k(rows, scores, k), rows.rank < k


class PassAtK(_AtK):
    """Chance that one of k samples is right: `pass@1`, `pass@2`, `pass@4`, ...

    Formula: 1 - C(n - c, k) / C(n, k) per question, with n samples that have a score, c of which
    score exactly 1 (unbiased, arXiv 2107.03374); mean over questions.
    Unit: per cent.
    Reads: rollouts `sample` and what `of` reads.
    No answer, also an empty reply: not right. No reply: not among the n, counted; a question with
    fewer than k scored samples has no value.
    Known holes: with a measure that is not 0 / 1, only a full score counts as right. A k above the
    number of samples is an error.
    """

    kind: Literal["pass_at_k"] = "pass_at_k"

    def numbers(
        self, inputs: ScoreInputs, rows: Samples, scores: Values, k: int
    ) -> Iterator[tuple[str, Values, Flags]]:
        yield "pass", pass_at_k(rows, scores, k), rows.rank >= 0


class MajAtK(_AtK):
    """Score of the most frequent answer among the first k samples: `maj@1`, `maj@2`, ...

    Formula: each of the k samples with the lowest numbers that has an answer votes for it; answers
    that the benchmark's verifier finds the same are pooled. For a benchmark that compares words,
    that is equality after normalising, or as math if `of` is `math_match`.
    The question scores the mean over the samples with the winning answer; tied answers are
    averaged, which is what a fair draw between them gives. Without any answer it scores 0.
    `maj_published@k` is the published form: raw texts, empty ones too, and the answer seen first
    wins a tie.
    Unit: per cent, mean over questions.
    Reads: rollouts `sample`, `answer`, for math also `reply`, and what `of` reads.
    Reply without an answer, also an empty one: has no vote. No reply: has no vote, counted; a
    question without any reply among the k has no value.
    Known holes: right answers in different words split the vote. A k above the number of samples
    is an error.
    """

    kind: Literal["maj_at_k"] = "maj_at_k"

    def verifier(self, own: Verifier) -> Verifier:
        return verifier_behind(self.of, own) or own

    def numbers(
        self, inputs: ScoreInputs, rows: Samples, scores: Values, k: int
    ) -> Iterator[tuple[str, Values, Flags]]:
        voted = votes(inputs, self.of)
        pooled, raw = inputs.once(f"ballots {self.of}", lambda: _ballots(inputs, voted))
        may_vote = (voted != "").cast(pl.Float64).to_numpy()
        yield "maj", maj_at_k(rows, pooled, scores, may_vote, k), rows.rank < k
        yield "maj_published", maj_at_k_published(rows, raw, scores, k), rows.rank < k


def _ballots(inputs: ScoreInputs, voted: pl.Series) -> tuple[Ballots, Ballots]:
    """Ballots of the pooled and of the raw answers, computed in two threads."""
    raw = inputs.rollouts["answer"].fill_null("")
    with ThreadPoolExecutor(2) as threads:
        pooled, published = threads.map(partial(ballots, samples(inputs)), (voted, raw))
    return pooled, published


def at_k_name(name: str, k: int, of: Accuracy) -> str:
    """Name of a number over k samples: `pass@4`, or `f1_score_avg@4` for another measure.

    Example:
        >>> at_k_name("pass", 4, "exact_match"), at_k_name("avg", 4, "f1_score")
        ('pass@4', 'f1_score_avg@4')
    """
    return f"{name}@{k}" if of == "exact_match" else f"{of}_{name}@{k}"


def _measure(
    inputs: ScoreInputs, metric: str, values: Values, scores: Values, among: Flags, of: Accuracy
) -> Measure:
    """The mean over questions of one value per question, in per cent.

    Args:
        inputs: The cell.
        metric: Name of the number in tables.
        values: One value per question, shape (questions,); NaN if it has none.
        scores: One score per rollout; NaN if it has none.
        among: The rollouts that the values are computed from; `n` and `failed` count them.
        of: The measure behind the scores.
    """
    rows = samples(inputs)
    counted = np.bincount(rows.question[among & ~np.isnan(scores)], minlength=len(rows.ids))
    chosen = np.bincount(rows.question[among], minlength=len(rows.ids))
    questions = {"question_id": rows.ids, "n": counted, "failed": chosen - counted}
    value = pl.Series("value", values).fill_nan(None)
    return Measure(
        metric=metric,
        unit="percent",
        questions=pl.DataFrame(questions).with_columns(value),
        settings={"of": of},
    )
