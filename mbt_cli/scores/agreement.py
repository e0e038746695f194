"""How far two orders or two judges agree: Goodman-Kruskal gamma, Cohen's kappa, confusion table."""

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.samples import refuse_repeats

Floats = npt.NDArray[np.float64]

NO_VERDICT = ("unread", "missing")
"""What a confusion table says where a judge's reply could not be read, or is not there."""

_KEY = ("question_id", "sample", "vote")


def gamma_of_shares(right: Floats, wrong: Floats) -> Floats:
    """Goodman-Kruskal gamma between an ordered level and right / wrong.

    (concordant - discordant) / (concordant + discordant) over pairs of one right and one wrong
    item; pairs on the same level do not count.

    Args:
        right: Weight of right items on each level, levels ascending, shape (levels, resamples).
        wrong: Weight of wrong items likewise.

    Returns:
        Shape (resamples,); NaN where no pair is either.

    Example:
        >>> gamma_of_shares(np.array([[1.0], [2.0]]), np.array([[2.0], [1.0]])).tolist()
        [0.6]
    """
    wrong_below = np.cumsum(wrong, axis=0) - wrong
    right_below = np.cumsum(right, axis=0) - right
    concordant = (right * wrong_below).sum(axis=0)
    discordant = (wrong * right_below).sum(axis=0)
    pairs = concordant + discordant
    gamma: Floats = np.divide(
        concordant - discordant, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0
    )
    return gamma


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
