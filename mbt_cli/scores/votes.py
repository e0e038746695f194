"""Several verdicts on one rollout made into one value: majority, mean, and how far they agree."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from mbt_cli.scores.samples import Values, refuse_repeats

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


NO_VERDICT = ("unread", "missing")


def confusion(first: pl.DataFrame, second: pl.DataFrame, column: str) -> pl.DataFrame:
    """How often two judges said what about the same rollouts.

    Args:
        first: Verdicts of one judge, `rows.VERDICTS` with its columns.
        second: Verdicts of the other on the same rollouts.
        column: What they said, such as `grade` or `hit`.

    Returns:
        Columns `first`, `second` (what each said, as text; `unread` where it could not be read,
        `missing` where there is no verdict) and `count`, sorted.

    Raises:
        StageError: One of the two has the same vote on a rollout twice.
    """
    said = []
    for number, verdicts in enumerate((first, second)):
        refuse_repeats(verdicts, _KEY, "verdicts")
        readable = pl.col("failure").is_null() & pl.col(column).is_not_null()
        text = pl.when(readable).then(pl.col(column).cast(pl.String)).otherwise(pl.lit("unread"))
        said.append(verdicts.select(*_KEY, text.alias(("first", "second")[number])))
    both = said[0].join(said[1], on=_KEY, how="full", coalesce=True)
    return (
        both.with_columns(pl.col("first", "second").fill_null("missing"))
        .group_by("first", "second")
        .agg(count=pl.len().cast(pl.Int64))
        .sort("first", "second")
    )


def both_read(table: pl.DataFrame) -> pl.DataFrame:
    """The part of a confusion table where both judges gave a verdict that could be read."""
    return table.filter(~pl.any_horizontal(pl.col("first", "second").is_in(NO_VERDICT)))


def cohens_kappa(table: pl.DataFrame) -> float:
    """Agreement beyond chance of two judges, from their confusion table.

    (observed - expected) / (1 - expected), over what both could read; NaN when chance alone would
    give full agreement, or nothing is left.

    Args:
        table: As `confusion` gives it.
    """
    read = both_read(table)
    total = int(read["count"].sum())
    if not total:
        return float("nan")
    same = read.filter(pl.col("first") == pl.col("second"))
    observed = int(same["count"].sum()) / total
    sides = [
        read.group_by(side).agg(share=pl.col("count").sum() / total).rename({side: "said"})
        for side in ("first", "second")
    ]
    both = sides[0].join(sides[1], on="said", suffix="_other")
    expected = float((both["share"] * both["share_other"]).sum())
    return float("nan") if expected >= 1 else (observed - expected) / (1 - expected)
