"""Points of a judge against those of humans: error, agreement, rank correlation, bias."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import POINTS, Scale
from mbt_cli.core.measures import Means, Measure
from mbt_cli.scores.agreement import kappa_measure, share_measure
from mbt_cli.scores.human import HUMAN
from mbt_cli.scores.samples import Values
from mbt_cli.scores.statistics import Floats

CORRELATION = "correlation"
"""Unit of a correlation: 1 for the same order, 0 for none, -1 for the reverse."""
_MOMENTS = ("rows", "x", "y", "xx", "yy", "xy")


def point_measures(
    rollouts: pl.DataFrame,
    values: Values,
    labels: pl.DataFrame,
    scale: Scale,
    *,
    judge: str,
    suffix: str,
    bands: Sequence[float],
) -> Sequence[Measure]:
    """Agreement of one judge of points with humans, over the labelled rollouts.

    Args:
        rollouts: `question_id` and `sample` of each rollout.
        values: The judge's points on each, NaN for unread ones.
        labels: `question_id`, `sample` and `label` of the labelled rollouts.
        scale: The judge's scale, which reads the labels.
        judge: Name of the judge model.
        suffix: Of the metrics' names, behind `_points`.
        bands: Points at which each band begins, ascending.
    """
    span = scale.high - scale.low
    shares = {label: scale.read_label(label) for label in labels["label"].unique()}
    points = {label: None if s is None else s * span + scale.low for label, s in shares.items()}
    said = labels.select(
        "question_id",
        "sample",
        human=pl.col("label").replace_strict(points, default=None, return_dtype=pl.Float64),
    ).drop_nulls("human")
    both = (
        rollouts.select("question_id", "sample")
        .with_columns(judge=pl.Series(values, dtype=pl.Float64).fill_nan(None))
        .join(said, on=["question_id", "sample"], how="inner")
        .sort("question_id", "sample")
        # shares times the span: 6/7 x 7 is not quite 6
        .with_columns(pl.col("judge", "human").round(9))
    )
    read = both.drop_nulls("judge")
    settings: dict[str, Json] = {
        "judge": judge,
        "against": HUMAN,
        "quantity": POINTS,
        "labels": labels.height,
        "labels_elsewhere": labels.height - both.height,
        "labels_without_verdict": both.height - read.height,
    }

    def named(name: str) -> str:
        return f"{name}_{POINTS}{suffix}"

    def share(name: str, hits: pl.DataFrame, hit: pl.Expr, **more: Json) -> Measure:
        found = hits.select("question_id", hit=hit)
        return share_measure(named(name), found, settings={**settings, **more})

    apart = pl.col("judge") - pl.col("human")
    band = [_band(column, bands) for column in ("judge", "human")]
    as_text = [pl.col(c).cast(pl.String).fill_null("unread") for c in ("judge", "human")]
    pairs = both.select("question_id", first=as_text[0], second=as_text[1])
    return [
        kappa_measure(named("human_kappa"), pairs, is_ordered=True, settings=settings),
        share("human_same", read, apart == 0),
        share("human_band", read, band[0] == band[1], bands=list(bands)),
        _mean_of_pairs(
            named("human_error"), read, apart.abs(), {**settings, "least": 0, "most": span}
        ),
        _mean_of_pairs(
            named("human_bias"), read, apart, {**settings, "least": -span, "most": span}
        ),
        _rank_correlation(named("human_rank"), read, settings),
        share("human_unread", both, pl.col("judge").is_null()),
    ]


def _band(column: str, bands: Sequence[float]) -> pl.Expr:
    return pl.col(column).map_elements(
        lambda points: bisect_right(bands, points), return_dtype=pl.Int64
    )


def _mean_of_pairs(
    metric: str, read: pl.DataFrame, what: pl.Expr, settings: Mapping[str, Json]
) -> Measure:
    """The mean over labelled rollouts, whose interval resamples questions."""
    questions = read.group_by("question_id", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64),
        failed=pl.lit(0, dtype=pl.Int64),
        total=what.sum(),
        rows=pl.len().cast(pl.Float64),
    )
    found = {**settings, "pairs": read.height}
    if read.is_empty():
        found["undefined"] = "no labelled rollout has points that could be read"
    return Measure(metric=metric, unit=POINTS, questions=questions, estimate=_ratio, settings=found)


def _ratio(means: Means) -> Floats:
    return means["total"] / means["rows"]


def _rank_correlation(metric: str, read: pl.DataFrame, settings: Mapping[str, Json]) -> Measure:
    """Spearman's correlation: Pearson's of ranks, equal values sharing their mean rank."""
    x, y = (read[side].rank("average") for side in ("judge", "human"))
    ranks = read.select("question_id", x=x, y=y)
    questions = ranks.group_by("question_id", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64),
        failed=pl.lit(0, dtype=pl.Int64),
        rows=pl.len().cast(pl.Float64),
        x=pl.col("x").sum(),
        y=pl.col("y").sum(),
        xx=(pl.col("x") ** 2).sum(),
        yy=(pl.col("y") ** 2).sum(),
        xy=(pl.col("x") * pl.col("y")).sum(),
    )
    found = {**settings, "pairs": read.height}
    if read.is_empty():
        found["undefined"] = "no labelled rollout has points that could be read"
    elif 1 in (x.n_unique(), y.n_unique()):
        found["undefined"] = "one side gives a single value"
    return Measure(
        metric=metric,
        unit=CORRELATION,
        questions=questions,
        estimate=_pearson,
        settings=found,
    )


def _pearson(means: Means) -> Floats:
    n, x, y, xx, yy, xy = (means[name] for name in _MOMENTS)
    spread = (xx / n - (x / n) ** 2) * (yy / n - (y / n) ** 2)
    defined = spread > 1e-9
    root = np.sqrt(np.where(defined, spread, 1.0))
    return np.asarray(np.where(defined, (xy / n - x / n * (y / n)) / root, np.nan))
