"""Means over benchmarks: a row for each method, in which each benchmark counts once."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from mbt_cli.core.measures import CLUSTER
from mbt_cli.core.tables import COUNTS, IS_MEAN, Column, TableData
from mbt_cli.report.layout import group_labels
from mbt_cli.report.notes import ADDRESS
from mbt_cli.report.seeds import (
    LEAST_SHARED,
    SHARE_UNITS,
    clusters_of,
    interval_over_seeds,
    seed_values,
)
from mbt_cli.report.ties import STRATUM, Marks, marked, strata_of
from mbt_cli.scores.over_benchmarks import mean_interval, stratified
from mbt_cli.scores.statistics import Interval

BENCHMARK = "benchmark"
"""The axis over which the mean is taken."""
_PARTS = ("", "_low", "_high", "_n", "_failed", "_fixed")


def benchmark_means(
    table: TableData, scores: pl.DataFrame, shares: Collection[str]
) -> Marks | None:
    """The means of the methods of a table over its benchmarks, with their marks.

    The rows of a method differ in their benchmark alone. It has a mean of each metric for which it
    has a number on every benchmark of the table.

    Args:
        table: One row per cell.
        scores: `notes.question_scores` of the cells.
        shares: The metrics that are shares of samples.

    Returns:
        A table of means alone, whose `benchmark` says over how many they are; None if there are
        none.
    """
    if BENCHMARK not in table.labels:
        return None
    of_groups = group_labels(table.rows, table.labels, BENCHMARK)
    labels = [label for label in table.labels if label not in (BENCHMARK, *of_groups)]
    count = table.rows[BENCHMARK].n_unique()
    if count < 2 or not labels or table.rows.select(*labels, BENCHMARK).is_duplicated().any():
        return None
    parts = table.rows.partition_by(labels, maintain_order=True)
    methods = {f"method {k}": part for k, part in enumerate(parts) if part.height == count}
    pooled = _pooled(scores, methods)
    values = pooled.partition_by(ADDRESS, "metric", as_dict=True)
    rows = []
    for name, part in methods.items():
        row: dict[str, Any] = dict.fromkeys(of_groups)
        row |= {label: part[label][0] for label in labels}
        row |= {ADDRESS: name, BENCHMARK: f"mean of {count}", IS_MEAN: True}
        for column in table.columns:
            if column.key in COUNTS:
                row[column.key] = _count(column.key, part[column.key])
            elif column.kind == "number":
                own = values.get((name, column.key))
                row |= _mean(column, part, own, is_share=column.key in shares)
        rows.append(row)
    schema = {name: dtype for name, dtype in table.rows.schema.items() if rows and name in rows[0]}
    means = pl.DataFrame(rows, schema={**schema, IS_MEAN: pl.Boolean()})
    metrics = [c.key for c in table.columns if c.kind == "number" and c.key not in COUNTS]
    known = means.filter(pl.any_horizontal(pl.col(metrics).is_not_null())) if rows else means
    return None if known.is_empty() else marked(replace(table, rows=known, notes=()), pooled)


def with_means(table: TableData, means: Marks | None) -> TableData:
    """The table with its means as the last rows, which have no address."""
    if means is None:
        return table
    below = means.table.rows.with_columns(pl.lit(None, pl.String).alias(ADDRESS))
    cells = table.rows.with_columns(pl.lit(value=False).alias(IS_MEAN))
    return replace(table, rows=pl.concat([cells, below], how="diagonal"))


def cells_of_mean(table: TableData, row: int) -> list[str]:
    """Addresses of the cells that a row of `with_means` is the mean of."""
    mean = table.rows.row(row, named=True)
    labels = [name for name in table.labels if name != BENCHMARK and mean[name] is not None]
    own = table.rows.filter(~pl.col(IS_MEAN), *(pl.col(name) == mean[name] for name in labels))
    return own[ADDRESS].to_list()


def mean_notes(means: Marks | None, *, seeds: bool) -> list[str]:
    """What a mean over benchmarks is."""
    if means is None:
        return []
    shared = " It also counts the seeds, which the benchmarks share." if seeds else ""
    return [
        f"{means.table.rows[BENCHMARK][0].capitalize()}: every benchmark counts once, whatever its "
        "number of questions; the interval adds those of the benchmarks, whose questions are "
        f"independent (`mbt help metrics`).{shared} A method without a number on one of them has "
        "no mean."
    ]


def _pooled(scores: pl.DataFrame, methods: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The questions of all benchmarks of a method, with the benchmark as their stratum."""
    cells = [
        {"cell": address, "method": name, STRATUM: benchmark}
        for name, part in methods.items()
        for address, benchmark in part.select(ADDRESS, BENCHMARK).iter_rows()
    ]
    schema = {"cell": pl.String(), "method": pl.String(), STRATUM: pl.String()}
    known = pl.DataFrame(cells, schema=schema)
    found = scores.join(known, left_on=ADDRESS, right_on="cell")

    def within(column: str) -> pl.Expr:
        return pl.format("{}/{}", STRATUM, column).alias(column)

    found = found.with_columns(pl.col("method").alias(ADDRESS), within("question_id"))
    if found[CLUSTER].null_count() < found.height:  # those of some benchmarks may be alone
        found = found.with_columns(pl.coalesce(within(CLUSTER), "question_id").alias(CLUSTER))
    return found


def _count(name: str, counts: pl.Series) -> int | None:
    """The sum of counts; the number of seeds if all benchmarks have the same."""
    if name != "seeds":
        return int(counts.sum())
    return None if counts.n_unique() > 1 else counts[0]


def _mean(
    column: Column, cells: pl.DataFrame, scores: pl.DataFrame | None, *, is_share: bool
) -> dict[str, Any]:
    """KEY, KEY_low, ... of a mean; null if a benchmark has no number."""
    names = {part: f"{column.key}{part}" for part in _PARTS}
    there = {part: name for part, name in names.items() if name in cells.columns}
    values = cells[column.key].to_list()
    row: dict[str, Any] = dict.fromkeys(there.values())
    if any(value is None for value in values):
        return row
    row[column.key] = sum(values) / len(values)
    for part in ("_n", "_failed"):
        if part in there:
            row[there[part]] = int(cells[there[part]].sum())
    if "_fixed" in there and (is_fixed := cells[there["_fixed"]].fill_null(value=False)).any():
        row[there["_fixed"]] = is_fixed.all()
    if "_low" not in there:
        return row
    known = [
        Interval(low, high)
        for low, high in cells.select(there["_low"], there["_high"]).iter_rows()
        if low is not None and high is not None and low < high
    ]
    has_seeds = "seeds" in cells.columns and cells["seeds"].fill_null(1).gt(1).any()
    interval = None
    if has_seeds and scores is not None:
        interval = _over_seeds(scores, row, column.key, is_share=is_share)
    elif len(known) == len(values) and has_seeds:  # the seeds may move all benchmarks alike
        low = sum(one.low for one in known) / len(known)
        interval = Interval(low, sum(one.high for one in known) / len(known))
    elif len(known) == len(values):
        interval = mean_interval(values, known)
    if interval and column.unit in SHARE_UNITS:
        interval = interval.within(0.0, 1.0)
    if interval:
        row |= {there["_low"]: interval.low, there["_high"]: interval.high}
    return row


def _over_seeds(
    scores: pl.DataFrame, row: Mapping[str, Any], metric: str, *, is_share: bool
) -> Interval | None:
    """The interval of the mean over benchmarks of several seeds, which all benchmarks share."""
    known = scores.filter(pl.col("value").is_not_null())
    wide = seed_values(known)
    if wide.height < max(2, LEAST_SHARED * row[f"{metric}_n"]) or wide.width < 3:
        return None
    ids, values = wide["question_id"], wide.drop("question_id").to_numpy().T
    strata = strata_of(ids, known)
    assert strata is not None
    clusters = clusters_of(ids, [known])
    return interval_over_seeds(
        stratified(values, strata), clusters, value=row[metric], is_share=is_share
    )
