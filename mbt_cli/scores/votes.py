"""Votes of judges: several votes on a rollout as one value, and the agreement of two judges."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from mbt_cli.core.judge_scales import Combine
from mbt_cli.scores.samples import Values, refuse_repeats

_ROLLOUT = ("question_id", "sample")
_VOTE = (*_ROLLOUT, "vote")

NO_VERDICT = ("unread", "missing")
"""Values in a confusion table for an unparsed reply, and for a missing verdict."""


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes on each rollout, in the order of the rollouts.

    Args:
        value: The combined value; NaN if no vote could be parsed or a majority is tied.
        unparsed: Share of the rollout's votes without a value; NaN if it has no vote.
        agreement: Share of the parsed votes that equal the most frequent one; NaN with fewer than
            two.
    """

    value: Values
    unparsed: Values
    agreement: Values


def combined(
    rollouts: pl.DataFrame, verdicts: pl.DataFrame, number: pl.Expr, combine: Combine
) -> Votes:
    """Combine the votes on each rollout.

    Args:
        rollouts: `question_id` and `sample` give the order of the result.
        verdicts: `rows.VERDICTS` with the judge's columns; rows with a `failure` are unparsed.
        number: A vote as a number, such as `Scale.number`; null counts as unparsed.
        combine: How several votes become one value.

    Raises:
        StageError: A vote on a rollout is repeated.
    """
    vote = pl.when(pl.col("failure").is_null()).then(number)
    found = _per_rollout(
        rollouts,
        verdicts,
        value=vote.median() if combine == "median" else vote.mean(),
        parsed=vote.count().cast(pl.Float64),
        unparsed=vote.is_null().mean(),
        # of 0 / 1 votes, the mean tells how many are equal
        **({} if combine == "majority" else {"most": vote.drop_nulls().unique_counts().max()}),
    )
    value, parsed = found["value"].to_numpy(), found["parsed"].to_numpy()
    if combine == "majority":
        agreement = np.maximum(value, 1 - value)
        value = np.where((value == 0.5) | np.isnan(value), np.nan, value > 0.5)
    else:
        agreement = found["most"].to_numpy() / parsed
    several = np.where(parsed >= 2, agreement, np.nan)
    return Votes(value, found["unparsed"].to_numpy(), several)


def mean_vote(rollouts: pl.DataFrame, verdicts: pl.DataFrame, number: pl.Expr) -> Values:
    """Mean over each rollout's parsed votes; NaN without one. Args and errors as in `combined`."""
    vote = pl.when(pl.col("failure").is_null()).then(number.cast(pl.Float64))
    return _per_rollout(rollouts, verdicts, mean=vote.mean())["mean"].to_numpy()


def failed_votes(rollouts: pl.DataFrame, verdicts: pl.DataFrame) -> Values:
    """Share of each rollout's votes that failed; NaN without a vote."""
    failed = pl.col("failure").is_not_null().mean()
    return _per_rollout(rollouts, verdicts, failed=failed)["failed"].to_numpy()


def _per_rollout(rollouts: pl.DataFrame, verdicts: pl.DataFrame, **found: pl.Expr) -> pl.DataFrame:
    """Aggregates of each rollout's votes, in the order of the rollouts; NaN without a vote."""
    refuse_repeats(verdicts, _VOTE, "verdicts")
    votes = verdicts.group_by(_ROLLOUT).agg(**found)
    joined = rollouts.select(_ROLLOUT).join(votes, on=_ROLLOUT, how="left", maintain_order="left")
    return joined.select(pl.col(list(found)).cast(pl.Float64).fill_null(np.nan))


def confusion(first: pl.DataFrame, second: pl.DataFrame, column: str) -> pl.DataFrame:
    """Confusion table of two judges on the same rollouts.

    Args:
        first: Verdicts of one judge, `rows.VERDICTS` with its columns.
        second: Verdicts of the other on the same rollouts.
        column: The column to compare, such as `grade` or `hit`.

    Returns:
        Columns `first`, `second` (values as text; `unread` for an unparsed vote, `missing` for no
        vote) and `count`, sorted.

    Raises:
        StageError: A vote on a rollout is repeated.
    """
    sides = []
    for name, verdicts in (("first", first), ("second", second)):
        refuse_repeats(verdicts, _VOTE, "verdicts")
        parsed = pl.col("failure").is_null() & pl.col(column).is_not_null()
        text = pl.when(parsed).then(pl.col(column).cast(pl.String)).otherwise(pl.lit("unread"))
        sides.append(verdicts.select(*_VOTE, text.alias(name)))
    both = sides[0].join(sides[1], on=_VOTE, how="full", coalesce=True)
    return (
        both.with_columns(pl.col("first", "second").fill_null("missing"))
        .group_by("first", "second")
        .agg(count=pl.len().cast(pl.Int64))
        .sort("first", "second")
    )


def both_parsed(table: pl.DataFrame) -> pl.DataFrame:
    """The rows of a confusion table in which both judges gave a value."""
    return table.filter(~pl.any_horizontal(pl.col("first", "second").is_in(NO_VERDICT)))


def cohens_kappa(table: pl.DataFrame) -> float:
    """Cohen's kappa of a confusion table: the agreement of two judges beyond chance.

    (observed - expected) / (1 - expected) over the votes that both judges parsed; NaN if there are
    none, or if the expected agreement is 1.
    """
    parsed = both_parsed(table)
    total = int(parsed["count"].sum())
    if not total:
        return float("nan")
    same = parsed.filter(pl.col("first") == pl.col("second"))
    observed = int(same["count"].sum()) / total
    sides = [
        parsed.group_by(side).agg(share=pl.col("count").sum() / total).rename({side: "value"})
        for side in ("first", "second")
    ]
    both = sides[0].join(sides[1], on="value", suffix="_other")
    expected = float((both["share"] * both["share_other"]).sum())
    return float("nan") if expected >= 1 else (observed - expected) / (1 - expected)
