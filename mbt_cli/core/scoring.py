"""What scores have in common: one pass over a cell's rows, shared by all that ask."""

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.answer_frames import answer_metrics
from mbt_cli.core.chat import Json
from mbt_cli.core.math_match import math_right
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.samples import Samples, Values, samples_of
from mbt_cli.core.votes import Voted, majority


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
        lambda: answer_metrics(inputs.rollouts, inputs.benchmark, question=question),
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


SampleCounts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
"""Values of k, each at least 1."""

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
    """1 or 0 for each rollout's math answer, NaN where the rollout failed; worked out once."""

    def values() -> Values:
        return live_only(inputs, math_right(inputs.rollouts, inputs.benchmark).to_numpy())

    return inputs.once("math_match", values)


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
