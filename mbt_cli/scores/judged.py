"""AnswerInclusiveErrors: wrong answers whose trace had reached the right one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.traces import trace_column
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import (
    Accuracy,
    accuracy_values,
    correct_votes,
    cut_values,
    judges_behind,
    live_only,
    mean_measure,
    samples,
)
from mbt_cli.scores.votes import Voted, majority
from mbt_cli.verifiers.text import normalised


class JudgeAccuracy(Score):
    """Share of answers that the judge `answer_match` found correct.

    Formula: 1 if more than half of a rollout's readable votes have grade A, 0 if fewer than half.
    Gives too: `judge_unread`, the share of votes that could not be read;
    `judge_accuracy_if_unread_wrong` and `judge_accuracy_if_unread_right`, the score if every
    rollout without a readable majority were wrong, or right; with several votes a rollout
    `judge_vote_agreement`, the mean share of votes that say what most say.
    Unit: per cent of samples, averaged within questions first.
    Reads: verdicts of `answer_match`: `grade`, `vote`, `failure`.
    No answer: wrong (0) without asking. Unread verdict, tied votes, failed rollout, rollout
    without a verdict: no value, counted; never 0.
    Known holes: a judge errs, and may favour its own family's style; see judge agreement.
    """

    version: ClassVar[int] = 2

    kind: Literal["judge_accuracy"] = "judge_accuracy"

    def needs(self) -> Collection[str]:
        return ("answer_match",)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        votes = correct_votes(inputs)
        if votes is None:
            return []
        value = live_only(inputs, votes.value)
        found = [mean_measure(inputs, self.kind, value, shape="binary")]
        found.append(
            mean_measure(inputs, "judge_unread", live_only(inputs, votes.unread), shape="share")
        )
        missing = np.isnan(value) & ~samples(inputs).failed
        for name, filled in (("wrong", 0.0), ("right", 1.0)):
            bound = np.where(missing, filled, value)
            found.append(
                mean_measure(inputs, f"{self.kind}_if_unread_{name}", bound, shape="binary")
            )
        if not np.isnan(votes.agreement).all():
            found.append(mean_measure(inputs, "judge_vote_agreement", votes.agreement))
        return found


class AnswerHitRate(Score):
    """Share of rollouts whose trace reaches the gold answer, whatever the final answer is.

    Formula: `answer_hit` is 1 if most readable votes of the judge `answer_hit` say YES.
    `answer_hit_substring` is 1 if the normalised gold answer or an alias is a substring of the
    normalised trace (the paper's judge-free form), `answer_hit_words` if it stands there as whole
    words. Beside them `answer_hit_unread`, the share of votes that could not be read, and
    `answer_hit_not_judged`, the share of rollouts that were cut and so not sent.
    Unit: per cent of samples, averaged within questions first.
    Reads: verdicts of `answer_hit`: `hit`; rollouts `reasoning`, `reply`; gold answer, aliases.
    Empty trace: no hit. Cut reply: not sent, counts as no hit in `answer_hit`, which is a lower
    bound then. Unread verdict, tied votes, failed rollout: no value, counted.
    Known holes: without a judge, a trace that quotes the documents hits by quoting; substring
    finds `no` in `know`. Without verdicts only the judge-free numbers are given.
    """

    kind: Literal["answer_hit"] = "answer_hit"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        found = []
        votes = judged_hits(inputs)
        if votes is not None:
            judged, unread = live_only(inputs, votes.value), live_only(inputs, votes.unread)
            cut = cut_values(inputs)
            found += [
                mean_measure(inputs, "answer_hit", judged, shape="binary"),
                mean_measure(inputs, "answer_hit_unread", unread, shape="share"),
                mean_measure(inputs, "answer_hit_not_judged", cut, shape="share"),
            ]
        hits = free_hits(inputs)
        return [
            *found,
            mean_measure(inputs, "answer_hit_substring", hits.substring, shape="binary"),
            mean_measure(inputs, "answer_hit_words", hits.words, shape="binary"),
        ]


class AnswerInclusiveErrors(Score):
    """Share of all predictions that are wrong although the trace reaches the gold answer.

    Formula: `answer_inclusive_errors` is 1 if the answer is not right and the judge `answer_hit`
    says YES. `answer_inclusive_errors_of_errors` is the same over wrong answers only (ratio of
    the two means). `_substring` and `_words` behind the name: with the judge-free hits.
    Unit: per cent of all samples (of wrong samples), averaged within questions first.
    Reads: whatever `accuracy` reads, and what the score `answer_hit` reads.
    No answer: wrong. Cut reply: wrong, and no hit for the judge, so the share is a lower bound.
    A rollout whose correctness or hit could not be read has no value and is counted.
    Known holes: those of both judgements together; not right means below 1, so with F1 every
    partly right answer is an error.
    """

    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"
    accuracy: Accuracy = "judge_accuracy"
    """Which measure says that an answer is right."""

    def needs(self) -> Collection[str]:
        return judges_behind(self.accuracy)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return []
        free = free_hits(inputs)
        hits = {"_substring": free.substring, "_words": free.words}
        votes = judged_hits(inputs)
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


_ROWS_AT_ONCE = 2_000  # traces are long; this bounds memory


@dataclass(frozen=True, slots=True)
class TraceHits:
    """1 where a reference occurs in the trace, else 0; shape (rows,).

    Args:
        substring: As a run of characters of the normalised trace, the paper's way: `no` is found
            in `norway`, and a reference that normalises to nothing is found in every trace that
            has any text.
        words: As whole words, side by side and in order.
    """

    substring: Values
    words: Values


def trace_hits(rollouts: pl.DataFrame) -> TraceHits:
    """Look for gold answer and aliases in each rollout's trace.

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


def judged_hits(inputs: ScoreInputs) -> Voted | None:
    """Votes of the judge `answer_hit`; None when it was not asked.

    A cut reply was not judged (its `hit` is null without a failure): it counts as no hit, so every
    share made of this is a lower bound.
    """
    verdicts = inputs.verdicts.get("answer_hit")
    if verdicts is None:
        return None
    says_hit = pl.col("hit").fill_null(False)
    return inputs.once("answer_hit", lambda: majority(inputs.rollouts, verdicts, says_hit))


def free_hits(inputs: ScoreInputs) -> TraceHits:
    """Hits found by looking for the gold answer in the trace; NaN where the rollout failed."""

    def looked_for() -> TraceHits:
        hits = trace_hits(inputs.rollouts)
        return TraceHits(live_only(inputs, hits.substring), live_only(inputs, hits.words))

    return inputs.once("trace_hits", looked_for)
