"""What scores have in common: one pass over a cell's rows, shared by all that ask."""

from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.traces import cut_column
from mbt_cli.scores.samples import Samples, Values, samples_of
from mbt_cli.scores.votes import Voted, majority
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.text import TextVerifier, answer_metrics


def samples(inputs: ScoreInputs) -> Samples:
    """Which question and sample each rollout is; StageError when two rows are the same one."""
    return inputs.once("samples", lambda: samples_of(inputs.rollouts))


def answer_values(inputs: ScoreInputs, column: str) -> Values:
    """A column of `answer_metrics`, one value per rollout, NaN where it failed."""
    return answer_frame(inputs)[column].to_numpy()


def answer_frame(inputs: ScoreInputs) -> pl.DataFrame:
    """`answer_metrics` of the cell's rollouts."""
    question = samples(inputs).question
    return inputs.once(
        "answer_metrics",
        lambda: answer_metrics(inputs.rollouts, inputs.official, question=question),
    )


def rollout_values(inputs: ScoreInputs, expression: pl.Expr) -> Values:
    """A numeric or Boolean expression over the rollouts, NaN where null or the rollout failed."""
    live = pl.when(pl.col("failure").is_null()).then(expression.cast(pl.Float64))
    return inputs.rollouts.select(live.fill_null(np.nan)).to_series().to_numpy()


def correct_votes(inputs: ScoreInputs) -> Voted | None:
    """Whether the answer judge found each rollout correct; None when it was not asked."""
    verdicts = inputs.verdicts.get("answer_match")
    if verdicts is None:
        return None
    is_correct = pl.col("grade") == "A"
    return inputs.once("answer_match", lambda: majority(inputs.rollouts, verdicts, is_correct))


Accuracy = Literal[
    "judge_accuracy",
    "exact_match",
    "substring_match",
    "f1_score",
    "containment",
    "official_exact_match",
    "official_f1",
    "math_match",
]
"""Which measure a score takes for being right."""


def judges_behind(accuracy: Accuracy) -> Collection[str]:
    """Kinds of judges that a measure of being right needs."""
    return ("answer_match",) if accuracy == "judge_accuracy" else ()


def accuracy_values(inputs: ScoreInputs, accuracy: Accuracy) -> Values | None:
    """How right each rollout is, in [0, 1]; None when the judge that says it was not asked."""
    if accuracy == "math_match":
        return math_values(inputs)
    if accuracy != "judge_accuracy":
        return answer_values(inputs, accuracy)
    votes = correct_votes(inputs)
    return None if votes is None else live_only(inputs, votes.value)


def math_values(inputs: ScoreInputs) -> Values:
    """How right each math answer is, NaN where the rollout failed.

    By the benchmark's own verifier, or by that of math where the benchmark compares words.
    """
    is_words = isinstance(inputs.verifier, TextVerifier)
    verifier = MathVerifier() if is_words else inputs.verifier
    return inputs.once(
        "math_match", lambda: verifier.values(inputs.rollouts).fill_null(np.nan).to_numpy()
    )


def votes(inputs: ScoreInputs) -> pl.Series:
    """The answer that each rollout votes for, pooled by the benchmark's verifier; "" for none."""
    words = answer_frame(inputs)["normalised"]
    return inputs.once("votes", lambda: inputs.verifier.votes(inputs.rollouts, words))


def live_only(inputs: ScoreInputs, values: Values) -> Values:
    """The values with NaN where the rollout itself failed."""
    return np.where(samples(inputs).failed, np.nan, values)


def mean_measure(
    inputs: ScoreInputs,
    metric: str,
    values: Values,
    *,
    unit: str = "percent",
    shape: Literal["number", "binary", "share"] = "number",
    settings: Mapping[str, Json] | None = None,
) -> Measure:
    """The mean over questions of the mean over samples.

    Args:
        inputs: The cell.
        metric: Name of the number in tables.
        values: One value per rollout, NaN where it has none.
        unit: Of the values; `percent` values are in [0, 1].
        shape: `binary` for 0 / 1 values (McNemar fits), `share` for those whose interval is
            Wilson's, `number` for the rest.
        settings: What a reader must know to recompute it.
    """
    return Measure(
        metric=metric,
        unit=unit,
        questions=samples(inputs).per_question({"value": values}),
        settings=settings or {},
        binary=shape != "number",
        interval="wilson" if shape == "share" else "bootstrap",
    )


def mean_over_questions(inputs: ScoreInputs, values: Values) -> float | None:
    """Mean over questions of the mean over samples; None where nothing has a value or it is 0."""
    column = samples(inputs).per_question({"value": values})["value"].drop_nulls().to_numpy()
    mean = float(np.mean(column)) if len(column) else 0.0
    return mean or None


def cut_values(inputs: ScoreInputs) -> Values:
    """1 where the reply was cut, 0 where it was not, NaN where the rollout failed."""
    return rollout_values(inputs, cut_column())
