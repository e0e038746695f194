"""MajAtK: score of the answer that most of k samples give."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Samples, Values
from mbt_cli.scores.scoring import Accuracy, accuracy_values, judges_behind, samples, votes

Counts = npt.NDArray[np.int64]
SampleCounts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
"""Values of k, each at least 1."""

_FEW = 32  # samples a question that are compared one with each other


def powers_of_two(samples: Samples) -> list[int]:
    """1, 2, 4, ... up to the fewest samples that any question has."""
    fewest = int(samples.counts().min())
    return [1 << power for power in range(fewest.bit_length())]


def checked_k(samples: Samples, wanted: Sequence[int] | None) -> list[int]:
    """The values of k to compute: those wanted, else `powers_of_two`.

    Raises:
        StageError: A wanted k is above the samples that some question has.
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
            f"k = {max(wanted)} needs as many samples a question; `{question}` has {fewest}",
            hint=f"raise `samples` on the rollout stage, or set `k` to at most {fewest}",
        )
    return sorted(set(wanted))


def avg_at_k(samples: Samples, scores: Values, k: int) -> Values:
    """Mean score of the first k samples, shape (questions,); NaN where all of them failed."""
    size = len(samples.ids)
    live = (samples.rank < k) & ~np.isnan(scores)
    count = np.bincount(samples.question[live], minlength=size)
    total = np.bincount(samples.question[live], weights=scores[live], minlength=size)
    mean: Values = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return mean


def pass_at_k(samples: Samples, scores: Values, k: int) -> Values:
    """Chance that k samples drawn without replacement hold a right one, per question.

    1 - C(n - c, k) / C(n, k), with n samples that have a score and c of them scoring exactly 1:
    the unbiased estimate of arXiv 2107.03374. NaN where fewer than k samples have a score.
    """
    size = len(samples.ids)
    has = ~np.isnan(scores)
    n = np.bincount(samples.question[has], minlength=size)
    right = np.bincount(samples.question[scores == 1.0], minlength=size)
    # C(n - c, k) / C(n, k) is the product over j < k of (n - c - j) / (n - j)
    j = np.arange(k)[:, None]
    left, all_left = np.maximum(n - right - j, 0), np.maximum(n - j, 1)
    chance = 1.0 - np.prod(left / all_left, axis=0)
    return np.where(n >= k, chance, np.nan)


@dataclass(frozen=True, slots=True)
class Ballots:
    """Which samples gave the same answer to the same question.

    Args:
        answer: Number of each row's answer, shape (rows,); equal for the same answer to the same
            question, and below the length of `question`.
        question: The question of each answer's number, ascending; some numbers are not in use.
    """

    answer: Counts
    question: Counts


def ballots(samples: Samples, answers: pl.Series) -> Ballots:
    """Find the same answers among each question's samples; `answers` are texts without nulls.

    Where samples are few and even, they are compared place by place, texts by a hash that is
    checked afterwards; otherwise the pairs are ranked, which is slower and always fits.
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
    first_row: Counts  # the row that first gave the answer of each row, by its hash


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
        scores: One score per row, NaN where it failed.
        may_vote: Whether the row has an answer to vote with.
        k: How many samples vote.

    Returns:
        0 where no sample has an answer, NaN where all of the k failed.
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
    """The published form, shape (questions,); NaN where all of the first k samples failed."""
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


class AvgAtK(Score):
    """Mean score of the first k samples of each question: `avg@1`, `avg@2`, `avg@4`, ...

    Formula: mean over questions of the mean score of the k samples with the lowest numbers.
    Unit: per cent.
    Reads: rollouts `sample` and whatever `of` reads.
    No answer: 0. Failed rollout: no value among the k, counted; a question with none has none.
    Known holes: avg@k of small k is one draw of a few samples; the mean over all samples
    (`exact_match`) is the steadier number. A k above the samples present is an error.
    """

    kind: Literal["avg_at_k"] = "avg_at_k"
    of: Accuracy = "exact_match"
    """The score that is averaged."""
    k: SampleCounts | None = None
    """Numbers of samples; left out: 1, 2, 4, ... up to the fewest that a question has."""

    def needs(self) -> Collection[str]:
        return judges_behind(self.of)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        scores = accuracy_values(inputs, self.of)
        if scores is None:
            return []
        rows = samples(inputs)
        return [
            question_measure(
                inputs,
                at_k_name("avg", k, self.of),
                avg_at_k(rows, scores, k),
                scores=scores,
                among=rows.rank < k,
                of=self.of,
            )
            for k in checked_k(rows, self.k)
        ]


class PassAtK(Score):
    """Chance that k samples hold a right one: `pass@1`, `pass@2`, `pass@4`, ...

    Formula: 1 - C(n - c, k) / C(n, k) per question, with n samples that have a score and c of
    them scoring exactly 1 (unbiased, arXiv 2107.03374); mean over questions.
    Unit: per cent.
    Reads: rollouts `sample` and whatever `of` reads.
    No answer: not right. Failed rollout: not among the n, counted; a question with fewer than k
    scored samples has no value.
    Known holes: with a measure that is not 0 / 1 only a full score counts as right. A k above the
    samples present is an error.
    """

    kind: Literal["pass_at_k"] = "pass_at_k"
    of: Accuracy = "exact_match"
    """The score that says what is right."""
    k: SampleCounts | None = None
    """Numbers of samples; left out: 1, 2, 4, ... up to the fewest that a question has."""

    def needs(self) -> Collection[str]:
        return judges_behind(self.of)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        scores = accuracy_values(inputs, self.of)
        if scores is None:
            return []
        rows = samples(inputs)
        return [
            question_measure(
                inputs,
                at_k_name("pass", k, self.of),
                pass_at_k(rows, scores, k),
                scores=scores,
                among=rows.rank >= 0,
                of=self.of,
            )
            for k in checked_k(rows, self.k)
        ]


class MajAtK(Score):
    """Score of the most frequent answer among the first k samples: `maj@1`, `maj@2`, ...

    Formula: each of the k samples with the lowest numbers that has an answer votes for it; answers
    that the benchmark's verifier finds the same (for words, equal after normalising) are pooled.
    The question scores what the winning answer's samples score on average. Tied answers are
    averaged: what a fair draw between them gives. Without any answer it scores 0.
    `maj_published@k` beside it is the published form: raw texts, empty ones too, and the answer
    seen first wins a tie.
    Unit: per cent, mean over questions.
    Reads: rollouts `sample`, `answer` and whatever `of` reads.
    Failed rollout: has no vote, counted; a question whose k samples all failed has no value.
    Known holes: answers in different words split the vote. A k above the samples present is an
    error.
    """

    uses_verifier: ClassVar[bool] = True

    kind: Literal["maj_at_k"] = "maj_at_k"
    of: Accuracy = "exact_match"
    """The score that the winning answer gets."""
    k: SampleCounts | None = None
    """Numbers of samples; left out: 1, 2, 4, ... up to the fewest that a question has."""

    def needs(self) -> Collection[str]:
        return judges_behind(self.of)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        scores = accuracy_values(inputs, self.of)
        if scores is None:
            return []
        rows = samples(inputs)
        voted = votes(inputs)
        cast, cast_raw = inputs.once("ballots", lambda: _ballots(inputs, voted))
        may_vote = (voted != "").cast(pl.Float64).to_numpy()
        found = []
        for k in checked_k(rows, self.k):
            for name, values in (
                ("maj", maj_at_k(rows, cast, scores, may_vote, k)),
                ("maj_published", maj_at_k_published(rows, cast_raw, scores, k)),
            ):
                found.append(
                    question_measure(
                        inputs,
                        at_k_name(name, k, self.of),
                        values,
                        scores=scores,
                        among=rows.rank < k,
                        of=self.of,
                    )
                )
        return found


def _ballots(inputs: ScoreInputs, voted: pl.Series) -> tuple[Ballots, Ballots]:
    """Ballots of pooled and of raw answers, made on two cores."""
    raw = inputs.rollouts["answer"].fill_null("")
    with ThreadPoolExecutor(2) as threads:
        cast, cast_raw = threads.map(partial(ballots, samples(inputs)), (voted, raw))
    return cast, cast_raw


def at_k_name(name: str, k: int, of: Accuracy) -> str:
    """Name of a number over k samples: `pass@4`; `f1_score_avg@4` for another measure's.

    Example:
        >>> at_k_name("pass", 4, "exact_match"), at_k_name("avg", 4, "f1_score")
        ('pass@4', 'f1_score_avg@4')
    """
    return f"{name}@{k}" if of == "exact_match" else f"{of}_{name}@{k}"


def question_measure(
    inputs: ScoreInputs,
    metric: str,
    values: Values,
    *,
    scores: Values,
    among: npt.NDArray[np.bool_],
    of: Accuracy,
) -> Measure:
    """The mean over questions of a number that is made per question, in per cent.

    Args:
        inputs: The cell.
        metric: Name of the number in tables.
        values: One value per question, shape (questions,), NaN where it has none.
        scores: What the number is made of: one score per rollout, NaN where it has none.
        among: Which rollouts were looked at; `n` and `failed` count those.
        of: The measure behind the scores.
    """
    rows = samples(inputs)
    counted = np.bincount(rows.question[among & ~np.isnan(scores)], minlength=len(rows.ids))
    looked_at = np.bincount(rows.question[among], minlength=len(rows.ids))
    questions = {"question_id": rows.ids, "n": counted, "failed": looked_at - counted}
    value = pl.Series("value", values).fill_nan(None)
    return Measure(
        metric=metric,
        unit="percent",
        questions=pl.DataFrame(questions).with_columns(value),
        settings={"of": of},
    )
