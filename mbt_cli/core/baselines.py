"""A cell's per-question columns beside those of its baseline, and the baseline's own means."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from mbt_cli.core.measures import ScoreInputs
from mbt_cli.core.samples import Values
from mbt_cli.core.scoring import samples


def beside_baseline(
    inputs: ScoreInputs,
    own: Mapping[str, Values],
    baseline: Mapping[str, Values],
    *,
    counted: str,
) -> pl.DataFrame:
    """One row per question that both cells have: own columns, and the baseline's as `base_X`.

    A question enters only with all its columns: the two sides are means over the same questions.

    Args:
        inputs: The cell; its `baseline` must be there.
        own: Column to one value per rollout of the cell.
        baseline: The same for the baseline's rollouts.
        counted: The own column whose values `n` and `failed` count.
    """
    assert inputs.baseline is not None
    base = samples(inputs.baseline).per_question(baseline, counted=counted)
    base = base.drop("n", "failed").rename({name: f"base_{name}" for name in baseline})
    both = samples(inputs).per_question(own, counted=counted)
    both = both.join(base, on="question_id", how="left", maintain_order="left")
    values = [*own, *(f"base_{name}" for name in baseline)]
    whole = pl.all_horizontal(pl.col(values).is_not_null())
    return both.with_columns(pl.when(whole).then(pl.col(values)))


def mean_over_questions(inputs: ScoreInputs, values: Values) -> float | None:
    """Mean over questions of the mean over samples; None where nothing has a value or it is 0."""
    column = samples(inputs).per_question({"value": values})["value"].drop_nulls().to_numpy()
    mean = float(np.mean(column)) if len(column) else 0.0
    return mean or None
