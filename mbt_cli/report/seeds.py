"""Rows of a report that differ only in the seed of a training become one row: their mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import polars as pl

from mbt_cli.core.measures import CLUSTER
from mbt_cli.core.tables import ReportInputs
from mbt_cli.scores import seeds
from mbt_cli.scores.statistics import (
    NORMAL_95,
    Clusters,
    Floats,
    Interval,
    cluster_numbers,
    effective_clusters,
    per_cluster,
)

SEED = "seed"
"""The axis over which the mean is taken."""
_ADDRESS = "address"
_WITHOUT = f"/{SEED}=[^/]+"
_UNKNOWN_QUESTIONS = 1_000
"""For a number whose questions nobody counts; its error then has the normal distribution."""
_KEYS = (_ADDRESS, "metric", "by", "group")
SHARE_UNITS = ("percent", "share")
"""Units of numbers from 0 to 1."""
LEAST_SHARED = 0.9
"""Least share of the questions that all seeds have, for an interval of their mean."""


def without_seed(address: str) -> str:
    """The address of the row that all seeds of a cell share.

    Example:
        >>> without_seed("scores/model=m/seed=3/variant=v")
        'scores/model=m/variant=v'
    """
    return re.sub(_WITHOUT, "", address)


def merged_seeds(inputs: ReportInputs) -> ReportInputs:
    """The inputs with one row for all seeds of a cell; unchanged if no cell has two.

    `seeds` in the summary is the number of seeds. `scores` keeps the values of every seed, with the
    column `seed` and the address of the row.
    """
    has_seed = pl.col(_ADDRESS).str.contains(_WITHOUT)
    if SEED not in inputs.axes or inputs.summary.filter(has_seed)[SEED].n_unique() < 2:
        return inputs
    address = pl.col(_ADDRESS).str.replace(_WITHOUT, "")
    summary = inputs.summary.with_columns(address)
    values = _values(inputs.scores, address)
    merged = [
        _merged(group.rows(named=True), values)
        for group in summary.partition_by(_KEYS, maintain_order=True)
    ]
    found = pl.DataFrame(merged, schema={**summary.schema, "seeds": pl.Int64()}).drop(SEED)
    there = set(found[_ADDRESS])
    missing = pl.Series(inputs.missing, dtype=pl.String).str.replace(_WITHOUT, "").to_list()
    return replace(
        inputs,
        summary=found,
        scores=inputs.scores.with_columns(address),
        axes=[axis for axis in inputs.axes if axis != SEED],
        missing=[one for one in dict.fromkeys(missing) if one not in there],
        missing_seeds=sum(one in there for one in missing),
    )


def seed_values(scores: pl.DataFrame) -> pl.DataFrame:
    """One column per seed with the value of each question that all seeds have; `question_id`."""
    wide = scores.with_columns(pl.col(SEED).fill_null("")).pivot(
        SEED, index="question_id", values="value", aggregate_function="first"
    )
    return wide.drop_nulls().sort("question_id")


def clusters_of(ids: pl.Series, scores: Sequence[pl.DataFrame]) -> Clusters | None:
    """The clusters of questions that rows of scores name; None if they name none."""
    named = [part.select("question_id", CLUSTER) for part in scores if CLUSTER in part.columns]
    if not named:
        return None
    known = pl.concat(named).drop_nulls().unique("question_id", keep="first", maintain_order=True)
    names = ids.to_frame().join(known, on="question_id", how="left", maintain_order="left")
    return None if names[CLUSTER].null_count() else cluster_numbers(names[CLUSTER])


_Values = Mapping[tuple[str, str], tuple[Floats, Clusters | None]]
"""Address without the seed and metric to the values, shape (seeds, questions), and clusters."""


def _values(scores: pl.LazyFrame, address: pl.Expr) -> _Values:
    names = scores.collect_schema().names()
    if not names:
        return {}
    wanted = scores.filter(pl.col("value").is_not_null(), pl.col(SEED).is_not_null())
    columns = ["metric", SEED, "question_id", "value", *({CLUSTER} & {*names})]
    frame = wanted.select(address, *columns).collect()
    parts = frame.partition_by(_ADDRESS, "metric", as_dict=True, include_key=False)
    found = {}
    for key, part in parts.items():
        wide = seed_values(part)
        clusters = clusters_of(wide["question_id"], [part])
        values = wide.drop("question_id").to_numpy().T
        found[str(key[0]), str(key[1])] = values, clusters
    return found


def _merged(rows: Sequence[Mapping[str, Any]], values: _Values) -> dict[str, Any]:
    """One row of the summary for all seeds of a metric."""
    first = rows[0]
    if len(rows) == 1:
        return {**first, "seeds": 1}
    here = (first[_ADDRESS], first["metric"]) if first["by"] is None else None
    known, clusters = values.get(here, (None, None)) if here else (None, None)
    interval = None
    value, settings = _mean(rows, "value"), orjson.loads(first["settings"])
    counts = [row["n"] for row in rows if row["n"] is not None]
    n = max(counts, default=None)
    if known is not None and n is not None and known.shape[1] < LEAST_SHARED * n:
        settings["no_interval"] = f"the seeds share {known.shape[1]:,} of {n:,} questions"
    elif (
        known is not None
        and value is not None
        and len(known) == len(rows)
        and per_cluster(known, clusters).shape[1] > 1
    ):
        # questions that a seed lacks count in the number
        is_share = settings.get("interval") == "wilson"
        interval = interval_over_seeds(known, clusters, value=value, is_share=is_share)
    elif found := _of_summaries(rows, "value", "low", "high"):
        interval = found.interval()
    if interval and first["unit"] in SHARE_UNITS:
        interval = interval.within(0.0, 1.0)
    apart = _of_summaries(rows, "difference", "difference_low", "difference_high")
    between = apart.interval() if apart else None
    if between and first["unit"] in SHARE_UNITS:
        between = between.within(-1.0, 1.0)
    return {
        **first,
        "value": value,
        **_ends("low", "high", interval),
        "n": n,
        "failed": sum(row["failed"] for row in rows),
        "baseline": _mean(rows, "baseline"),
        "difference": _mean(rows, "difference"),
        **_ends("difference_low", "difference_high", between),
        "p": apart.p() if apart else None,
        "settings": orjson.dumps(
            {**settings, "seeds": len(rows)}, option=orjson.OPT_SORT_KEYS
        ).decode(),
        "seeds": len(rows),
    }


def interval_over_seeds(
    values: Floats, clusters: Clusters | None, *, value: float, is_share: bool
) -> Interval | None:
    """The interval of a mean over seeds and questions, around the number that is shown.

    Args:
        values: Shape (seeds, questions), at least two of each.
        clusters: The cluster of each question; None if questions are independent.
        value: The number.
        is_share: Whether it is a share of samples.
    """
    estimate = replace(seeds.over_seeds(values, clusters), value=value)
    if not is_share:
        return estimate.interval()
    least = values.shape[1] if clusters is None else effective_clusters(clusters)
    return estimate.share_interval(questions=least, samples=values.size)


def _of_summaries(
    rows: Sequence[Mapping[str, Any]], value: str, low: str, high: str
) -> seeds.Estimate | None:
    """From the numbers and intervals of the seeds; None if one of them is missing."""
    if any(row[name] is None for row in rows for name in (value, low, high)):
        return None
    errors = [(row[high] - row[low]) / 2 / NORMAL_95 for row in rows]
    units = (orjson.loads(row["settings"]).get("clusters", row["n"]) for row in rows)
    questions = max(2, min((n for n in units if n is not None), default=_UNKNOWN_QUESTIONS))
    return seeds.of_estimates([row[value] for row in rows], errors, questions=questions)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [row[name] for row in rows]
    return None if any(one is None for one in found) else float(np.mean(found))


def _ends(low: str, high: str, interval: Interval | None) -> dict[str, float | None]:
    return {low: interval.low if interval else None, high: interval.high if interval else None}
