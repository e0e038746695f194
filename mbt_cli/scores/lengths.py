"""Scores of length: tokens, tokens per correct answer, degeneration, AES."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.traces import cut_column
from mbt_cli.core.verifier import Verifier
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import (
    Accuracy,
    accuracy_values,
    judges_behind,
    mean_measure,
    rollout_values,
    samples,
    token_values,
    tokens_column,
    verifier_behind,
)


def tail_loop_column(*, window: int, unit: int, repeats: int) -> pl.Expr:
    """Whether a reply ends in a loop: a Boolean column, never null.

    The last `unit` characters of the reply (of the reasoning if the reply is empty) occur at least
    `repeats` times, without overlap, in its last `window` characters. The period of a loop can be
    up to window / repeats. White space is squeezed first, and a text shorter than `unit` x
    `repeats` has no loop.

    Args:
        window: Characters at the end that are searched.
        unit: Characters that must repeat.
        repeats: Minimum number of occurrences.
    """
    reply = pl.col("reply").fill_null("")
    text = pl.when(reply.str.strip_chars() != "").then(reply).otherwise(pl.col("reasoning"))
    # squeezing shortens the text, so take more than the window first
    tail = text.fill_null("").str.tail(2 * window)
    tail = tail.str.replace_all(r"\s+", " ").str.strip_chars().str.tail(window)
    again = tail.str.count_matches(tail.str.tail(unit), literal=True)
    return (tail.str.len_chars() >= unit * repeats) & (again >= repeats)


class Tokens(Score):
    """Mean length of the replies.

    Formula: mean of completion tokens, reasoning included, as the server counts them; those of all
    steps together, where a program made the rollout.
    Unit: tokens per rollout, averaged over samples within questions first.
    Reads: rollouts `total_completion_tokens`, else `completion_tokens`.
    No reply, or no count from the server: no value, counted. Empty and refused replies count with
    the tokens that the server gave them.
    Known holes: models with different tokenizers are not comparable; truncated replies count with
    the limit, so the mean depends on `max_tokens`.
    """

    kind: Literal["tokens"] = "tokens"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        tokens = token_values(inputs)
        return [mean_measure(inputs, self.kind, tokens, unit="tokens")]


class AnswerTokens(Score):
    """Mean length of the reply that a rollout returns, without the other steps of its program.

    Formula: mean of completion tokens, reasoning included, as the server counts them.
    Unit: tokens per reply, averaged over samples within questions first.
    Reads: rollouts `completion_tokens`.
    No reply, or no count from the server: no value, counted.
    Known holes: those of `tokens`; a program that merges or shortens drafts returns a short text
    for many tokens.
    """

    kind: Literal["answer_tokens"] = "answer_tokens"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        tokens = rollout_values(inputs, pl.col("completion_tokens"))
        return [mean_measure(inputs, self.kind, tokens, unit="tokens")]


class ProgramSteps(Score):
    """Requests that a rollout makes, and those of them that were of no use.

    Formula: `steps` is the mean number of requests of a rollout; `steps_unread` that of replies
    without what the program needs of them, `steps_failed` that of requests without a reply.
    Unit: requests per rollout, averaged over samples within questions first.
    Reads: rollouts `steps`, `unread_steps`, `failed_steps`.
    No program in the stage: no number. A failed rollout: no value, counted.
    Known holes: a step that is asked again because it could not be read counts twice, as it costs.
    """

    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["steps"] = "steps"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        if "steps" not in inputs.rollouts.columns:
            return []
        columns = {"steps": "steps", "steps_unread": "unread_steps", "steps_failed": "failed_steps"}
        return [
            mean_measure(inputs, metric, rollout_values(inputs, pl.col(column)), unit="requests")
            for metric, column in columns.items()
        ]


class TokensPerCorrect(Score):
    """Tokens per right answer.

    Formula: mean tokens of all replies / mean accuracy, both over the same rollouts; wrong and
    truncated replies count too.
    Unit: tokens per right answer; undefined if no answer is right.
    Reads: rollouts `total_completion_tokens`, else `completion_tokens`, and whatever `accuracy`
    reads.
    No verdicts although the accuracy is a judge's: no number. A rollout without one of the two
    values enters neither mean and is counted.
    Known holes: favours a model that answers easy questions briefly and gives up on the rest.
    """

    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["tokens_per_correct"] = "tokens_per_correct"
    accuracy: Accuracy = "judge_accuracy"
    """The accuracy to use."""

    def verifier(self, own: Verifier) -> Verifier | None:
        return verifier_behind(self.accuracy, own)

    def needs(self) -> Collection[str]:
        return judges_behind(self.accuracy)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return []
        tokens = token_values(inputs)
        missing = np.isnan(accuracy) | np.isnan(tokens)
        columns = {
            "accuracy": np.where(missing, np.nan, accuracy),
            "tokens": np.where(missing, np.nan, tokens),
        }
        return [
            Measure(
                metric=self.kind,
                unit="tokens",
                questions=samples(inputs).per_question(columns, counted="accuracy"),
                estimate=_ratio,
                by_log=True,
                settings={"accuracy": self.accuracy},
            )
        ]


def _ratio(means: Means) -> npt.NDArray[np.float64]:
    return means["tokens"] / means["accuracy"]


class Degeneration(Score):
    """Share of truncated replies, and share of replies that end in a loop.

    Formula: `degeneration` is 1 if finish_reason is not stop, tool_calls or function_call.
    `degeneration_loops` is 1 if the last `unit` characters of the reply occur at least `repeats`
    times in its last `window` characters. The two overlap; neither includes the other.
    Unit: per cent of samples, averaged within questions first; Wilson intervals.
    Reads: rollouts `finish_reason`, `reply`, `reasoning`.
    No reply: no value, counted.
    Known holes: loops that change a word each time are not found, nor loops that the model left
    before its answer.
    """

    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["degeneration"] = "degeneration"
    window: int = Field(default=2000, gt=0)
    """Characters at the end of a reply to search for a loop."""
    unit: int = Field(default=40, gt=0)
    """Characters at the very end that must repeat."""
    repeats: int = Field(default=4, gt=1)
    """Number of occurrences that make a loop."""

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        cut = rollout_values(inputs, cut_column())
        found = tail_loop_column(window=self.window, unit=self.unit, repeats=self.repeats)
        settings = {"window": self.window, "unit": self.unit, "repeats": self.repeats}
        loops = rollout_values(inputs, found)
        return [
            mean_measure(inputs, self.kind, cut, shape="binary"),
            mean_measure(inputs, "degeneration_loops", loops, shape="binary", settings=settings),
        ]


Length = Literal["all", "answered", "not_truncated"]


class AES(Score):
    """Accuracy-Efficiency Score of a cell against its baseline.

    Formula: dL = (L_base - L) / L_base, dA = (A - A_base) / A_base; AES = alpha dL + beta |dA| if
    dA >= 0, else alpha dL - gamma |dA|. A and L are means over the questions that both cells
    have. The table of the paper adds |dA| on a drop too, an error that is not reproduced here.
    Unit: index; 0 for the baseline itself, above 0 better.
    Reads: rollouts `total_completion_tokens`, else `completion_tokens`, and whatever `accuracy`
    reads, of the cell and its baseline; the interval resamples both together by question.
    No baseline, or no verdicts although the accuracy is a judge's: no number. A question without
    a value on either side is left out; its failed samples are counted.
    Known holes: one number hides which of the two changed; a weak baseline (small A_base) makes
    dA large; a baseline that is never right makes it undefined.
    """

    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["aes"] = "aes"
    alpha: float = Field(default=1.0, ge=0)
    """Weight of the change in length."""
    beta: float = Field(default=3.0, ge=0)
    """Weight of a gain in accuracy."""
    gamma: float = Field(default=5.0, ge=0)
    """Weight of a loss in accuracy."""
    accuracy: Accuracy = "judge_accuracy"
    """The accuracy to use."""
    length: Length = "all"
    """The replies whose tokens count: all, those with an answer, or those not truncated."""

    def verifier(self, own: Verifier) -> Verifier | None:
        return verifier_behind(self.accuracy, own)

    def needs(self) -> Collection[str]:
        return (*judges_behind(self.accuracy), "baseline")

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        if inputs.baseline is None:
            return []
        own, base = self._columns(inputs), self._columns(inputs.baseline)
        if own is None or base is None:
            return []
        return [
            Measure(
                metric=self.kind,
                unit="index",
                questions=beside_baseline(inputs, own, base, counted="accuracy"),
                estimate=self._estimate,
                settings=self.model_dump(exclude={"kind"}),
            )
        ]

    def _columns(self, inputs: ScoreInputs) -> dict[str, Values] | None:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return None
        return {"accuracy": accuracy, "tokens": _tokens(inputs, self.length)}

    def _estimate(self, means: Means) -> npt.NDArray[np.float64]:
        return aes(
            means["accuracy"],
            means["tokens"],
            base=(means["base_accuracy"], means["base_tokens"]),
            weights=(self.alpha, self.beta, self.gamma),
        )


def aes(
    accuracy: npt.NDArray[np.float64],
    tokens: npt.NDArray[np.float64],
    *,
    base: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    weights: tuple[float, float, float],
) -> npt.NDArray[np.float64]:
    """The formula, elementwise.

    Args:
        accuracy: In any unit, the same as the baseline's.
        tokens: Mean length.
        base: Accuracy and mean length of the baseline.
        weights: alpha, beta, gamma.
    """
    alpha, beta, gamma = weights
    shorter = (base[1] - tokens) / base[1]
    better = (accuracy - base[0]) / base[0]
    return alpha * shorter + np.where(better >= 0, beta, gamma) * better


def _tokens(inputs: ScoreInputs, length: Length) -> Values:
    tokens = tokens_column(inputs.rollouts)
    kept = {
        "all": tokens,
        "answered": pl.when(pl.col("answer").fill_null("") != "").then(tokens),
        "not_truncated": pl.when(~cut_column()).then(tokens),
    }
    return rollout_values(inputs, kept[length])


def beside_baseline(
    inputs: ScoreInputs,
    own: Mapping[str, Values],
    baseline: Mapping[str, Values],
    *,
    counted: str,
) -> pl.DataFrame:
    """One row per question of both cells: the cell's columns, and the baseline's as `base_X`.

    A question without all columns has none, so that both sides are means over the same questions.

    Args:
        inputs: The cell, with its `baseline`.
        own: Column to one value per rollout of the cell.
        baseline: The same for the baseline's rollouts.
        counted: The cell's column whose values `n` and `failed` count.
    """
    assert inputs.baseline is not None
    base = samples(inputs.baseline).per_question(baseline, counted=counted)
    base = base.drop("n", "failed").rename({name: f"base_{name}" for name in baseline})
    both = samples(inputs).per_question(own, counted=counted)
    both = both.join(base, on="question_id", how="left", maintain_order="left")
    values = [*own, *(f"base_{name}" for name in baseline)]
    whole = pl.all_horizontal(pl.col(values).is_not_null())
    return both.with_columns(pl.when(whole).then(pl.col(values)))
