"""What scores have in common: one pass over a cell's rows, shared by all that ask."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import polars as pl

from mbt_cli.core.answer_frames import answer_metrics
from mbt_cli.core.chat import Json
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.samples import Samples, Values, samples_of
from mbt_cli.core.votes import Voted, majority


def samples(inputs: ScoreInputs) -> Samples:
    """Which question and sample each rollout is; StageError when two rows are the same one."""
    return inputs.once("samples", lambda: samples_of(inputs.rollouts))


def answer_values(inputs: ScoreInputs, column: str) -> Values:
    """A column of `answer_metrics`, one value per rollout, NaN where it failed."""
    frame = inputs.once("answer_metrics", lambda: answer_metrics(inputs.rollouts, inputs.benchmark))
    return frame[column].to_numpy()


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
