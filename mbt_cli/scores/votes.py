"""Several verdicts on one rollout made into one value: majority, mean, and how far they agree."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from mbt_cli.core.samples import Values, refuse_repeats

_KEY = ("question_id", "sample")


@dataclass(frozen=True, slots=True)
class Voted:
    """What the votes on each rollout say, in the order of the rollouts.

    Args:
        value: The aggregate; NaN where no vote could be read, or a majority is tied.
        unread: Share of each rollout's votes that could not be read; NaN where it has no vote.
        agreement: Share of each rollout's readable votes that are equal to the most frequent
            one; NaN with fewer than two.
    """

    value: Values
    unread: Values
    agreement: Values


def majority(rollouts: pl.DataFrame, verdicts: pl.DataFrame, says_yes: pl.Expr) -> Voted:
    """1 where more than half of the readable votes say yes, 0 where fewer than half do.

    A tie has no value: it is left to no one's favour and counted as failed.

    Args:
        rollouts: `question_id` and `sample` give the order of the result.
        verdicts: `rows.VERDICTS` with the judge's columns; rows with a `failure` are unread.
        says_yes: Boolean expression over the judge's columns; null counts as unread.

    Raises:
        StageError: Two verdicts are the same vote on the same rollout.
    """
    share = _per_rollout(rollouts, verdicts, says_yes.cast(pl.Float64))
    mean = share["mean"].to_numpy()
    value = np.where(mean == 0.5, np.nan, np.where(np.isnan(mean), np.nan, mean > 0.5))
    agreed = np.where(share["read"].to_numpy() >= 2, np.maximum(mean, 1 - mean), np.nan)
    return Voted(value, share["unread"].to_numpy(), agreed)


def mean_vote(rollouts: pl.DataFrame, verdicts: pl.DataFrame, says: pl.Expr) -> Values:
    """Mean over readable votes of a number that the judge gave; NaN where it gave none.

    Args and errors as in `majority`; `says` is a numeric expression.
    """
    return _per_rollout(rollouts, verdicts, says.cast(pl.Float64))["mean"].to_numpy()


def _per_rollout(rollouts: pl.DataFrame, verdicts: pl.DataFrame, says: pl.Expr) -> pl.DataFrame:
    """`mean`, `read` and `unread` of each rollout's votes, NaN where there are none."""
    refuse_repeats(verdicts, (*_KEY, "vote"), "verdicts")
    said = pl.when(pl.col("failure").is_null()).then(says)
    votes = verdicts.group_by(_KEY).agg(
        mean=said.mean(),
        read=said.count().cast(pl.Float64),
        unread=said.is_null().mean(),
    )
    joined = rollouts.select(_KEY).join(votes, on=_KEY, how="left", maintain_order="left")
    return joined.select(pl.col("mean", "read", "unread").fill_null(np.nan))
