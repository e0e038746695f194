"""Scores of verdicts on answers and on hits: accuracy, answer hit, answer-inclusive errors."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.traces import trace_column
from mbt_cli.core.verifier import Verifier
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import (
    Accuracy,
    accuracy_values,
    correctness_votes,
    cut_values,
    judges_behind,
    live_only,
    mean_measure,
    samples,
    verifier_behind,
    votes_on,
)
from mbt_cli.verifiers.text import normalised

_HIT = "answer_in_trace"
_ROWS_AT_ONCE = 2_000  # traces are long; this bounds memory


class JudgeAccuracy(Score):
    """Share of answers that a judge finds correct, from the judge `answer_match`.

    Formula: 1 if more than half of a rollout's parsed votes have grade A, 0 if fewer than half;
    for a judge that gives points, their mean as a share of the maximum.
    Also: `judge_unread`, the share of votes that could not be parsed;
    `judge_accuracy_if_unread_wrong` and `judge_accuracy_if_unread_right`, the score if all
    rollouts without a parsed majority were wrong, or right; with several votes per rollout,
    `judge_vote_agreement`, the mean share of votes that equal the most frequent one.
    Unit: per cent of samples, averaged within questions first.
    Reads: verdicts of `answer_match`: `grade`, `vote`, `failure`.
    No answer, also an empty reply: wrong (0), without a request. Unparsed verdict, tied votes, no
    reply, rollout without a verdict: no value, counted; never 0.
    Known holes: judges err, and may favour the style of their own family; see judge agreement.
    """

    version: ClassVar[int] = 2

    kind: Literal["judge_accuracy"] = "judge_accuracy"

    def needs(self) -> Collection[str]:
        return judges_behind(self.kind)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        votes = correctness_votes(inputs)
        if votes is None:
            return []
        value = live_only(inputs, votes.value)
        unparsed = live_only(inputs, votes.unparsed)
        missing = np.isnan(value) & ~samples(inputs).failed
        found = [
            mean_measure(inputs, self.kind, value, shape="binary"),
            mean_measure(inputs, "judge_unread", unparsed, shape="binary"),
            *(
                mean_measure(
                    inputs,
                    f"{self.kind}_if_unread_{name}",
                    np.where(missing, filled, value),
                    shape="binary",
                )
                for name, filled in (("wrong", 0.0), ("right", 1.0))
            ),
        ]
        if not np.isnan(votes.agreement).all():
            found.append(mean_measure(inputs, "judge_vote_agreement", votes.agreement))
        return found


class AnswerHitRate(Score):
    """Share of rollouts whose trace reaches the gold answer, whatever the final answer is.

    Formula: `answer_hit` is 1 if most parsed votes of the judge `answer_hit` are YES.
    `answer_hit_substring` is 1 if the normalised gold answer or an alias is a substring of the
    normalised trace (the paper's judge-free form), `answer_hit_words` if the trace contains it as
    whole words. Also: `answer_hit_unread`, the share of votes that could not be parsed, and
    `answer_hit_not_judged`, the share of rollouts that were truncated and so not judged.
    Unit: per cent of samples, averaged within questions first.
    Reads: verdicts of `answer_hit`: `hit`; rollouts `reasoning`, `reply`; gold answer, aliases.
    Empty trace or reply: no hit. Truncated reply: not judged, and no hit in `answer_hit`, which is
    then a lower bound. Unparsed verdict, tied votes, no reply: no value, counted.
    Known holes: without a judge, a trace that quotes the documents hits by quoting; substring
    finds `no` in `know`. Without verdicts, only the judge-free numbers are given.
    """

    kind: Literal["answer_hit"] = "answer_hit"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        found = []
        votes = votes_on(inputs, _HIT)
        if votes is not None:
            judged, unparsed = live_only(inputs, votes.value), live_only(inputs, votes.unparsed)
            cut = cut_values(inputs)
            found = [
                mean_measure(inputs, "answer_hit", judged, shape="binary"),
                mean_measure(inputs, "answer_hit_unread", unparsed, shape="binary"),
                mean_measure(inputs, "answer_hit_not_judged", cut, shape="binary"),
            ]
        hits = _judge_free_hits(inputs)
        return [
            *found,
            mean_measure(inputs, "answer_hit_substring", hits.substring, shape="binary"),
            mean_measure(inputs, "answer_hit_words", hits.words, shape="binary"),
        ]


class AnswerInclusiveErrors(Score):
    """Share of all predictions that are wrong although the trace reaches the gold answer.

    Formula: `answer_inclusive_errors` is 1 if the answer is not right and the judge `answer_hit`
    says YES. `answer_inclusive_errors_of_errors` is the same over wrong answers only (ratio of
    the two means). With the suffixes `_substring` and `_words`: the same for judge-free hits.
    Unit: per cent of all samples (of wrong samples), averaged within questions first.
    Reads: whatever `accuracy` reads, and what the score `answer_hit` reads.
    No answer: wrong. Truncated reply: wrong unless it had answered, and no hit for the judge, so
    the share is a lower bound. A rollout without a parsed verdict on correctness or hit has no
    value and is counted.
    Known holes: those of both judgements together; not right means below 1, so with F1 every
    partly right answer is an error.
    """

    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"
    accuracy: Accuracy = "judge_accuracy"
    """The measure that says whether an answer is right."""

    def verifier(self, own: Verifier) -> Verifier | None:
        return verifier_behind(self.accuracy, own)

    def needs(self) -> Collection[str]:
        return judges_behind(self.accuracy)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return []
        free = _judge_free_hits(inputs)
        hits = {"_substring": free.substring, "_words": free.words}
        votes = votes_on(inputs, _HIT)
        if votes is not None:
            hits = {"": votes.value, **hits}
        return [m for name, hit in hits.items() for m in self._pair(inputs, name, accuracy, hit)]

    def _pair(
        self, inputs: ScoreInputs, name: str, accuracy: Values, hit: Values
    ) -> Sequence[Measure]:
        missing = np.isnan(accuracy) | np.isnan(hit)
        wrong = np.where(missing, np.nan, accuracy < 1)
        error = np.where(missing, np.nan, wrong * hit)
        settings = {"accuracy": self.accuracy}
        questions = samples(inputs).per_question({"error": error, "wrong": wrong}, counted="error")
        return [
            mean_measure(inputs, self.kind + name, error, shape="binary", settings=settings),
            Measure(
                metric=f"{self.kind}_of_errors{name}",
                unit="percent",
                questions=questions,
                estimate=_of_errors,
                settings=settings,
            ),
        ]


def _of_errors(means: Means) -> npt.NDArray[np.float64]:
    return means["error"] / means["wrong"]


@dataclass(frozen=True, slots=True)
class TraceHits:
    """1 if the trace contains a reference, else 0; shape (rows,).

    Args:
        substring: As a substring of the normalised trace, as in the paper: `no` is found in
            `norway`, and a reference that normalises to nothing in every trace with text.
        words: As whole words, consecutive and in order.
    """

    substring: Values
    words: Values


def _judge_free_hits(inputs: ScoreInputs) -> TraceHits:
    """`trace_hits` of the cell; NaN if the rollout failed."""

    def found() -> TraceHits:
        hits = trace_hits(inputs.rollouts)
        return TraceHits(live_only(inputs, hits.substring), live_only(inputs, hits.words))

    return inputs.once("trace_hits", found)


def trace_hits(rollouts: pl.DataFrame) -> TraceHits:
    """Search each rollout's trace for the gold answer and its aliases.

    Args:
        rollouts: `reasoning`, `reply`, `gold_answer`, `gold_aliases`.
    """
    slices = [_hits(piece) for piece in rollouts.iter_slices(_ROWS_AT_ONCE)]
    found = pl.concat(slices) if slices else _hits(rollouts)
    return TraceHits(found["substring"].to_numpy(), found["words"].to_numpy())


def _hits(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Columns `substring` and `words` (0 or 1), rows in the order of the input."""
    references = pl.concat_list(pl.col("gold_answer").fill_null(""), pl.col("gold_aliases"))
    fallback = pl.concat_list(pl.col("gold_answer").fill_null(""))
    rows = rollouts.select(
        trace_column(), reference=pl.coalesce(references, fallback).list.drop_nulls()
    ).with_row_index("row")
    rows = rows.with_columns(trace=normalised(rows["trace"]))
    pairs = rows.explode("reference")
    pairs = pairs.with_columns(reference=normalised(pairs["reference"]))
    trace, wanted = pl.col("trace"), pl.col("reference")
    padded = pl.concat_str(pl.lit(" "), trace, pl.lit(" "))
    word = pl.concat_str(pl.lit(" "), wanted, pl.lit(" "))
    hits = pairs.select(
        "row",
        substring=(trace != "") & trace.str.contains(wanted, literal=True),
        words=(wanted != "") & padded.str.contains(word, literal=True),
    )
    best = hits.group_by("row", maintain_order=True).agg(
        pl.col("substring", "words").max().cast(pl.Float64)
    )
    return best.select(pl.col("substring", "words").fill_null(np.nan))
