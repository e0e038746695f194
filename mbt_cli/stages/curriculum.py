"""Curricula from measurements: how often a model is right on each question, and orders by it."""

from typing import Annotated, Literal

import polars as pl
from pydantic import Field, field_validator

from mbt_cli.core.names import nearest
from mbt_cli.core.plugin import Settings
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.errors import StageError

Direction = Literal["easy_first", "hard_first"]
"""Questions by pass rate: the highest first, or the lowest."""
RIGHT = ("verified", "judge_accuracy", "math_match", "exact_match")
"""Metrics that say how right a reply is; the first that a score cell has is the pass rate."""

_RANGE = 2


class PassRates(Settings):
    """`{ pass_rate = [0.1, 0.9] }`: the questions that a model answers sometimes.

    A question's pass rate is its value in a score cell: the mean over the samples of a rollout.
    """

    pass_rate: Annotated[list[float], Field(min_length=_RANGE, max_length=_RANGE)]
    """The lowest and the highest that is kept, each in [0, 1]."""
    metric: str | None = None
    """Metric of the scores; by default `verified`, `judge_accuracy`, `math_match` or
    `exact_match`, the first that they have."""

    @field_validator("pass_rate")
    @classmethod
    def _is_range(cls, written: list[float]) -> list[float]:
        low, high = written
        if not 0 <= low <= high <= 1:
            raise ValueError("must be two numbers of [0, 1], the lower one first")
        return written


def pass_rates(scores: pl.LazyFrame, metric: str | None, where: str) -> pl.DataFrame:
    """`question_id`, `value` (null if all samples failed), `n` and `metric` of each question.

    Args:
        scores: Rows of a score cell.
        metric: Its metric; None for the first of `RIGHT`.
        where: Address of the cell, for messages.

    Raises:
        StageError: The cell does not have the metric, or none of `RIGHT`.
    """
    names = scores.select(pl.col("metric").unique()).collect()["metric"].to_list()
    found = [name for name in RIGHT if name in names] if metric is None else [metric]
    if not found or found[0] not in names:
        wanted = f"no metric `{metric}`" if metric else "none of the metrics " + ", ".join(RIGHT)
        raise StageError(
            f"`{where}` has {wanted}",
            hint=f"name one of its metrics; {nearest(metric or '', sorted(names))}",
        )
    own = scores.filter(pl.col("metric") == found[0])
    return own.select("question_id", "value", "n", "metric").collect()


def in_order(rates: pl.DataFrame, direction: Direction) -> pl.DataFrame:
    """The questions that have a value, by it; equal ones in a fixed order without a meaning.

    Example:
        >>> rates = pl.DataFrame({"question_id": ["a", "b", "c"], "value": [0.5, None, 1.0]})
        >>> in_order(rates, "easy_first")["question_id"].to_list()
        ['c', 'a']
    """
    known = rates.filter(pl.col("value").is_not_null())
    tie = [sha256_of(["order", name]) for name in known["question_id"]]
    order = known.with_columns(pl.Series("tie", tie, pl.String))
    return order.sort("value", "tie", descending=[direction == "easy_first", False]).drop("tie")


def out_of_range(rates: pl.DataFrame, kept: PassRates) -> pl.Expr:
    """Why a question is left out, by its `question_id`; null for those that are kept."""
    low, high = kept.pass_rate
    value = pl.col("question_id").replace_strict(
        rates["question_id"], rates["value"], default=None, return_dtype=pl.Float64
    )
    return (
        pl.when(value.is_null())
        .then(pl.lit("no_pass_rate"))
        .when(~value.is_between(low, high))
        .then(pl.lit("pass_rate"))
    )
