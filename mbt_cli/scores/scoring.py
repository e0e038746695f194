"""What scores share: values per rollout, computed once a cell, and the means over questions."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import CORRECTNESS, VERIFIED
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.traces import cut_column
from mbt_cli.core.verifier import Verifier
from mbt_cli.scores.samples import Samples, Values, samples_of
from mbt_cli.scores.votes import Votes, combined, mean_vote
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.text import TextVerifier, answer_metrics

Accuracy = Literal[
    "judge_accuracy",
    "exact_match",
    "substring_match",
    "f1_score",
    "containment",
    "official_exact_match",
    "official_f1",
    "math_match",
    "verified",
]
"""The measure that says how right an answer is."""


def samples(inputs: ScoreInputs) -> Samples:
    """The question and sample of each rollout; StageError if a rollout is repeated."""
    return inputs.once("samples", lambda: samples_of(inputs.rollouts))


def answer_frame(inputs: ScoreInputs) -> pl.DataFrame:
    """`answer_metrics` of the cell's rollouts."""
    question = samples(inputs).question
    return inputs.once(
        "answer_metrics",
        lambda: answer_metrics(inputs.rollouts, inputs.official, question=question),
    )


def answer_values(inputs: ScoreInputs, column: str) -> Values:
    """A column of `answer_metrics`: one value per rollout, NaN if the rollout failed.

    Where the benchmark's verifier replaces words, every measure of words is whether it passes.
    """
    if inputs.verifier.replaces_words:
        return own_values(inputs)
    return answer_frame(inputs)[column].to_numpy()


def own_values(inputs: ScoreInputs) -> Values:
    """How right each rollout is by the benchmark's verifier; NaN if it failed or has no verdict."""
    verifier = inputs.verifier
    return inputs.once(
        "own verifier", lambda: verifier.values(inputs.rollouts).fill_null(np.nan).to_numpy()
    )


def math_verifier(own: Verifier) -> Verifier:
    """What `math_match` compares by: a benchmark's own verifier, unless it compares words."""
    return MathVerifier() if isinstance(own, TextVerifier) else own


def math_values(inputs: ScoreInputs) -> Values:
    """How right each math answer is by `math_verifier`; NaN if the rollout failed."""
    verifier = math_verifier(inputs.verifier)
    return inputs.once(
        "math_match",
        lambda: verifier.values(inputs.rollouts).fill_null(np.nan).to_numpy(),
    )


def votes(inputs: ScoreInputs, of: Accuracy) -> pl.Series:
    """The answer that each rollout votes for; "" for none.

    Pooled by the rule that decides the accuracy: as words or as math if the accuracy compares
    so, otherwise by the benchmark's verifier.
    """
    verifier = verifier_behind(of, inputs.verifier) or inputs.verifier
    words = answer_frame(inputs)["normalised"]
    return inputs.once(f"votes by {verifier.kind}", lambda: verifier.votes(inputs.rollouts, words))


def accuracy_values(inputs: ScoreInputs, accuracy: Accuracy) -> Values | None:
    """How right each rollout is, from 0 to 1; None if that needs verdicts and there are none."""
    if accuracy == "math_match":
        return math_values(inputs)
    if accuracy == "verified":
        return verified_values(inputs)
    if accuracy != "judge_accuracy":
        return answer_values(inputs, accuracy)
    votes = correctness_votes(inputs)
    return None if votes is None else live_only(inputs, votes.value)


def verifier_behind(accuracy: Accuracy, own: Verifier) -> Verifier | None:
    """The verifier that an accuracy reads; None if it reads none.

    Args:
        accuracy: The measure.
        own: The benchmark's own verifier.
    """
    if own.replaces_words and accuracy not in _FROM_VERDICTS:
        return own
    return math_verifier(own) if accuracy == "math_match" else None


def judges_behind(accuracy: Accuracy) -> Collection[str]:
    """Quantities of the judges that an accuracy needs."""
    quantity = _FROM_VERDICTS.get(accuracy)
    return () if quantity is None else (quantity,)


_FROM_VERDICTS: Mapping[Accuracy, str] = {"judge_accuracy": CORRECTNESS, "verified": VERIFIED}
"""Accuracy to the quantity of the verdicts that it is read from."""


def verified_values(inputs: ScoreInputs) -> Values | None:
    """How right each rollout is by the verdicts of a verifier; None without them."""
    votes = votes_on(inputs, VERIFIED)
    return None if votes is None else live_only(inputs, votes.value)


def correctness_votes(inputs: ScoreInputs) -> Votes | None:
    """Votes on the correctness of each answer, from 0 to 1; None without verdicts.

    A reply without text is wrong whatever the judge makes of it.
    """
    found, rollouts = votes_on(inputs, CORRECTNESS), inputs.rollouts
    if found is None or "no_text" not in rollouts.columns:
        return found
    is_wrong = rollouts["no_text"].is_not_null().to_numpy()
    value, unparsed = (np.where(is_wrong, 0.0, v) for v in (found.value, found.unparsed))
    return replace(found, value=value, unparsed=unparsed)


def votes_on(inputs: ScoreInputs, quantity: str) -> Votes | None:
    """Combined votes on a quantity, as shares of the judge's scale; None without verdicts on it."""
    verdicts = inputs.verdicts.get(quantity)
    if verdicts is None:
        return None
    scale = verdicts.scale
    return inputs.once(
        f"votes on {quantity}",
        lambda: combined(inputs.rollouts, verdicts.rows, scale.share(), scale.combine),
    )


def mean_votes(inputs: ScoreInputs, quantity: str, number: pl.Expr) -> Values:
    """Mean over each rollout's votes of an expression over the verdicts' columns.

    NaN if the rollout failed or no vote has a value.
    """
    return live_only(inputs, mean_vote(inputs.rollouts, inputs.verdicts[quantity].rows, number))


_TOTAL = "total_completion_tokens"


def rollout_values(inputs: ScoreInputs, expression: pl.Expr) -> Values:
    """A numeric or Boolean expression over the rollouts; NaN if null or the rollout failed."""
    live = pl.when(pl.col("failure").is_null()).then(expression.cast(pl.Float64))
    return inputs.rollouts.select(live.fill_null(np.nan)).to_series().to_numpy()


def token_values(inputs: ScoreInputs) -> Values:
    """Completion tokens of each rollout: those of all steps, where a program made it."""
    return rollout_values(inputs, tokens_column(inputs.rollouts))


def tokens_column(rollouts: pl.DataFrame) -> pl.Expr:
    """The completion tokens of rollouts: those of all steps, where a program made them."""
    own = pl.col("completion_tokens")
    has_total = _TOTAL in rollouts.columns
    return pl.coalesce(_TOTAL, own) if has_total else own


def cut_values(inputs: ScoreInputs) -> Values:
    """1 for a truncated reply, else 0; NaN if the rollout failed."""
    return rollout_values(inputs, cut_column())


def live_only(inputs: ScoreInputs, values: Values) -> Values:
    """The values, with NaN for rollouts that failed."""
    return np.where(samples(inputs).failed, np.nan, values)


def mean_over_questions(inputs: ScoreInputs, values: Values) -> float | None:
    """Mean over questions of the mean over samples; None if it is 0 or there are no values."""
    column = samples(inputs).per_question({"value": values})["value"].drop_nulls().to_numpy()
    mean = float(np.mean(column)) if len(column) else 0.0
    return mean or None


def mean_measure(
    inputs: ScoreInputs,
    metric: str,
    values: Values,
    *,
    unit: str = "percent",
    shape: Literal["number", "binary"] = "number",
    settings: Mapping[str, Json] | None = None,
) -> Measure:
    """The mean over questions of the mean over samples.

    Args:
        inputs: The cell.
        metric: Name of the number in tables.
        values: One value per rollout, NaN if it has none.
        unit: Of the values; `percent` values are in [0, 1].
        shape: `binary` for 0 / 1 values, `number` for the rest.
        settings: What a reader needs to recompute it.
    """
    return Measure(
        metric=metric,
        unit=unit,
        questions=samples(inputs).per_question({"value": values}),
        settings=settings or {},
        binary=shape == "binary",
        values=values,
    )
