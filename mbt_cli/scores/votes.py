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
    one = {"median": vote.median(), "min": vote.min(), "max": vote.max()}
    found = _per_rollout(
        rollouts,
        verdicts,
        value=one.get(combine, vote.mean()),
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


def paired_votes(first: pl.DataFrame, second: pl.DataFrame, column: str) -> pl.DataFrame:
    """The votes of two judges on the same rollouts, joined by question, sample and vote.

    Args:
        first: Verdicts of one judge, `rows.VERDICTS` with its columns.
        second: Verdicts of the other on the same rollouts.
        column: The column to compare, such as `grade` or `hit`.

    Returns:
        `question_id`, `sample`, `vote`, and `first` and `second`: values as text, `unread` for an
        unparsed vote, `missing` for no vote.

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
    return both.with_columns(pl.col("first", "second").fill_null("missing"))


def repeated_votes(verdicts: pl.DataFrame, column: str) -> pl.DataFrame:
    """Every ordered pair of one judge's parsed votes on a rollout, in the form of `paired_votes`.

    `weight` makes each vote count once: 1 / (votes on the rollout - 1).
    """
    refuse_repeats(verdicts, _VOTE, "verdicts")
    parsed = verdicts.filter(pl.col("failure").is_null(), pl.col(column).is_not_null())
    own = parsed.select(*_VOTE, pl.col(column).cast(pl.String).alias("first"))
    own = own.with_columns(weight=1 / (pl.len().over(_ROLLOUT) - 1))
    other = own.select(*_ROLLOUT, pl.col("vote").alias("other"), second="first")
    pairs = own.join(other, on=_ROLLOUT).filter(pl.col("vote") != pl.col("other"))
    return pairs.drop("other")


def confusion(pairs: pl.DataFrame) -> pl.DataFrame:
    """Confusion table of `paired_votes`: `first`, `second` and `count`, sorted."""
    return (
        pairs.group_by("first", "second").agg(count=pl.len().cast(pl.Int64)).sort("first", "second")
    )


def both_parsed(pairs: pl.DataFrame) -> pl.DataFrame:
    """The rows of `paired_votes` or of their confusion table in which both judges gave a value."""
    return pairs.filter(~pl.any_horizontal(pl.col("first", "second").is_in(NO_VERDICT)))
