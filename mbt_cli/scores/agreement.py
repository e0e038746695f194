"""Agreement of verdicts beyond chance: Cohen's kappa over pairs of verdicts."""

from collections.abc import Collection, Mapping

import numpy as np
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.measures import Means, Measure
from mbt_cli.scores.statistics import (
    Clusters,
    Floats,
    effective_clusters,
    effective_share_interval,
    per_cluster,
)
from mbt_cli.scores.votes import both_parsed

KAPPA = "kappa"
"""Unit of Cohen's kappa: 1 for full agreement, 0 for that of chance."""


def kappa_measure(
    metric: str,
    pairs: pl.DataFrame,
    *,
    is_ordered: bool,
    settings: Mapping[str, Json] | None = None,
) -> Measure:
    """Cohen's kappa over all pairs, as a function of means over questions.

    kappa = 1 - D / D_chance, with D the mean disagreement of a pair and D_chance that of a first
    and a second value drawn independently. A disagreement is 1 for two different values (Cohen
    1960), or their squared difference (Cohen 1968, quadratic weights). Pairs of one judge's own
    votes in both orders give Fleiss' kappa (1971). The interval that `summarise_all` gives is the
    studentized bootstrap over questions; its standard error is the delta method over clusters, as
    in Yang and Zhou (2014, Statistics in Medicine 33:2612).

    Args:
        metric: Name of the number.
        pairs: `paired_votes`, or `repeated_votes` with their `weight`.
        is_ordered: Whether values are numbers whose disagreements are weighted by their square.
        settings: What a reader needs to recompute it; `weights`, `pairs` and, if there is no
            number or no interval, `undefined` or `no_interval` with the reason are added.
    """
    if "weight" not in pairs.columns:
        pairs = pairs.with_columns(weight=pl.lit(1.0))
    parsed = both_parsed(pairs)
    sums = _squares() if is_ordered else _counts({*parsed["first"], *parsed["second"]})
    lost = pairs.group_by("question_id").agg(rows=pl.len().cast(pl.Int64))
    questions = (
        parsed.group_by("question_id")
        .agg(n=_WEIGHT.sum().round().cast(pl.Int64), read=pl.len(), **sums)
        .join(lost, on="question_id", how="left")
        .with_columns(failed=pl.col("rows") - pl.col("read").cast(pl.Int64))
        .drop("rows", "read")
        .sort("question_id")
    )
    found: dict[str, Json] = {
        **(settings or {}),
        "weights": "quadratic" if is_ordered else "none",
        "pairs": int(questions["n"].sum()),
    }
    if parsed.is_empty():
        found["undefined"] = "no rollout has two parsed verdicts"
    elif len({*parsed["first"], *parsed["second"]}) == 1:
        found["undefined"] = "all verdicts are the same value"
    elif (parsed["first"] == parsed["second"]).all():
        found["no_interval"] = "the verdicts never differ"
    elif 1 in (parsed["first"].n_unique(), parsed["second"].n_unique()):
        found["no_interval"] = "one side gives a single value"  # then kappa is 0, whatever else
    return Measure(
        metric=metric,
        unit=KAPPA,
        questions=questions,
        estimate=_of_squares if is_ordered else _of_counts,
        settings=found,
    )


_WEIGHT = pl.col("weight")


def _squares() -> dict[str, pl.Expr]:
    x, y = (pl.col(side).cast(pl.Float64, strict=False) for side in ("first", "second"))
    return {
        "pairs": _WEIGHT.sum(),
        "apart": (_WEIGHT * (x - y) ** 2).sum(),
        "first": (_WEIGHT * x).sum(),
        "second": (_WEIGHT * y).sum(),
        "squares": (_WEIGHT * (x**2 + y**2)).sum(),
    }


def _of_squares(means: Means) -> Floats:
    n = means["pairs"]
    # E (X - Y)^2 of independent X and Y
    chance = means["squares"] / n - 2 * (means["first"] / n) * (means["second"] / n)
    return _beyond_chance(means["apart"] / n, chance)


def _counts(values: Collection[str]) -> dict[str, pl.Expr]:
    return {
        "pairs": _WEIGHT.sum(),
        "apart": (_WEIGHT * (pl.col("first") != pl.col("second"))).sum(),
        **{
            f"{side}_{k}": (_WEIGHT * (pl.col(side) == value)).sum()
            for k, value in enumerate(sorted(values))
            for side in ("first", "second")
        },
    }


def _of_counts(means: Means) -> Floats:
    n = means["pairs"]
    values = (len(means) - 2) // 2
    same = [means[f"first_{k}"] * means[f"second_{k}"] for k in range(values)]
    return _beyond_chance(means["apart"] / n, 1 - np.sum(same, axis=0) / n**2)


def _beyond_chance(disagreement: Floats, chance: Floats) -> Floats:
    possible = chance > 1e-12
    return np.asarray(np.where(possible, 1 - disagreement / np.where(possible, chance, 1), np.nan))


def share_measure(metric: str, hits: pl.DataFrame, *, settings: Mapping[str, Json]) -> Measure:
    """The share of hits among all rows, with Wilson's interval.

    The effective number of rows is that of the clustered variance of the ratio over questions, see
    `statistics.effective_share_interval`.

    Args:
        metric: Name of the number.
        hits: `question_id`, `hit` (true or false) and, if rows count differently, `weight`.
        settings: What a reader needs to recompute it; `undefined` is added if there are no rows.
    """
    if "weight" not in hits.columns:
        hits = hits.with_columns(weight=pl.lit(1.0))
    questions = (
        hits.group_by("question_id")
        .agg(
            n=_WEIGHT.sum().round().cast(pl.Int64),
            failed=pl.lit(0, dtype=pl.Int64),
            hits=(_WEIGHT * pl.col("hit")).sum(),
            rows=_WEIGHT.sum(),
        )
        .sort("question_id")
    )
    found: dict[str, Json] = {**settings, "pairs": int(questions["n"].sum())}
    if questions.is_empty():
        found["undefined"] = "there is no such verdict"
    else:
        found["interval"] = "wilson"
    inside, rows = (questions[name].to_numpy() for name in ("hits", "rows"))

    def interval(clusters: Clusters | None) -> tuple[float, float]:
        share = float(inside.sum() / rows.sum())
        moved = per_cluster((inside - share * rows) / rows.mean(), clusters)
        n = len(moved)
        ends = effective_share_interval(
            share,
            float(moved @ moved) / max(n - 1, 1) / n,
            degrees=n - 1,
            fewest=n if clusters is None else effective_clusters(clusters),
            most=max(float(rows.sum()), n),
        )
        return ends.low, ends.high

    return Measure(
        metric=metric,
        unit="percent",
        questions=questions,
        estimate=_of_hits,
        settings=found,
        interval=interval,
    )


def _of_hits(means: Means) -> Floats:
    return means["hits"] / means["rows"]
