"""MajAtK: score of the answer that most of k samples give."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

import polars as pl

from mbt_cli.core.aggregates import Ballots, ballots, checked_k, maj_at_k, maj_at_k_published
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import (
    Accuracy,
    SampleCounts,
    accuracy_values,
    answer_frame,
    at_k_name,
    judges_behind,
    question_measure,
    samples,
)
from mbt_cli.interfaces import Score


class MajAtK(Score):
    """Score of the most frequent answer among the first k samples: `maj@1`, `maj@2`, ...

    Formula: each of the k samples with the lowest numbers that has an answer votes for it,
    normalised; the question scores what the winning answer's samples score on average. Tied
    answers are averaged: what a fair draw between them gives. Without any answer it scores 0.
    `maj_published@k` beside it is the published form: raw texts, empty ones too, and the answer
    seen first wins a tie.
    Unit: per cent, mean over questions.
    Reads: rollouts `sample`, `answer` and whatever `of` reads.
    Failed rollout: has no vote, counted; a question whose k samples all failed has no value.
    Known holes: answers in different words split the vote. A k above the samples present is an
    error.
    """

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
        normalised = answer_frame(inputs)["normalised"]
        cast, cast_raw = inputs.once("ballots", lambda: _ballots(inputs, normalised))
        may_vote = (normalised != "").cast(pl.Float64).to_numpy()
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


def _ballots(inputs: ScoreInputs, normalised: pl.Series) -> tuple[Ballots, Ballots]:
    """Ballots of normalised and of raw answers, made on two cores."""
    raw = inputs.rollouts["answer"].fill_null("")
    with ThreadPoolExecutor(2) as threads:
        cast, cast_raw = threads.map(partial(ballots, samples(inputs)), (normalised, raw))
    return cast, cast_raw
