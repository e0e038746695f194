"""Notes below a table of metrics: what is missing, and what the numbers can show."""

from collections.abc import Iterator, Mapping, Sequence
from operator import truediv
from typing import Any

import orjson
import polars as pl

from mbt_cli.core.lineage_notes import NO_TEXT, notes_of
from mbt_cli.core.measures import CLUSTER
from mbt_cli.core.number_text import counted, number_text
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.report.seeds import SEED, without_seed
from mbt_cli.scores.summaries import NO_SPREAD

ADDRESS = "address"
_NOT_JUDGED = {"mqi": "mqi_not_judged", "rrp": "rrp_not_judged"}
"""Shares of rollouts that a family of metrics leaves out on purpose: these are not missing."""


def baselines(inputs: ReportInputs) -> list[str]:
    """Addresses of the rows that are their own baseline."""
    found = [
        cell[ADDRESS]
        for cell, reads in notes_of(inputs.cells.filter(pl.col("kind") == "score"), "reads")
        if reads and reads["rollouts"] == reads.get("baseline_rollouts")
    ]
    return found if SEED in inputs.axes else list(dict.fromkeys(map(without_seed, found)))


def question_scores(inputs: ReportInputs, metrics: Sequence[str]) -> pl.DataFrame:
    """Values per question of these metrics, in one pass: opening the files takes longest.

    Returns:
        `metric`, `address`, `seed`, `question_id`, `cluster` (null if questions come in none),
        `value` and `missing`, the number of samples without a value that should have one; `n`
        counts the others. No rows without scores.
    """
    columns = inputs.scores.collect_schema().names()
    texts = dict.fromkeys(("metric", ADDRESS, SEED, "question_id", CLUSTER), pl.String())
    empty = pl.DataFrame(
        schema={**texts, "value": pl.Float64(), "n": pl.Int64(), "missing": pl.Int64()}
    )
    if not columns:
        return empty
    families = {metric: _NOT_JUDGED.get(metric.partition("_")[0]) for metric in metrics}
    seed, cluster = (
        pl.col(name) if name in columns else pl.lit(None, pl.String).alias(name)
        for name in (SEED, CLUSTER)
    )
    found = (
        inputs.scores.filter(pl.col("metric").is_in([*metrics, *_NOT_JUDGED.values()]))
        .select("metric", ADDRESS, seed, "question_id", cluster, "value", "n", "failed")
        .collect()
    )
    keys = [ADDRESS, SEED, "question_id"]
    left_out = found.select(
        *keys, family="metric", left_out=(pl.col("value") * pl.col("n")).round().cast(pl.Int64)
    )
    own = found.filter(pl.col("metric").is_in(list(metrics))).with_columns(
        family=pl.col("metric").replace_strict(families, default=None, return_dtype=pl.String)
    )
    joined = own.join(left_out, on=[*keys, "family"], how="left", nulls_equal=True)
    missing = (pl.col("failed") - pl.col("left_out").fill_null(0)).clip(0)
    return joined.select(*empty.columns[:-1], missing=missing)


def with_missing(rows: pl.DataFrame, scores: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """The rows with `failed`: samples without a value in the metric that has most of these.

    Without scores per question (a breakdown), a metric that leaves samples out does not count.
    """
    counts = scores.group_by("metric", ADDRESS).agg(pl.col("missing").sum())
    names = []
    for metric in metrics:
        own = counts.filter(pl.col("metric") == metric).select(
            ADDRESS, pl.col("missing").alias(f"{metric}_missing")
        )
        rows = rows.join(own, on=ADDRESS, how="left", maintain_order="left")
        failed = pl.col(f"{metric}_failed")
        if metric.partition("_")[0] in _NOT_JUDGED:
            failed = pl.lit(None, pl.Int64)
        rows = rows.with_columns(pl.coalesce(f"{metric}_missing", failed))
        names.append(f"{metric}_missing")
    least = pl.min_horizontal(f"{metric}_failed" for metric in metrics)
    return rows.with_columns(failed=pl.coalesce(pl.max_horizontal(names), least))


def with_bounds(rows: pl.DataFrame, scores: pl.DataFrame, shares: Sequence[str]) -> pl.DataFrame:
    """The rows with METRIC_if_wrong and METRIC_if_right where samples of a share are missing.

    These are the share if every missing sample had the value 0, and if every one had 1.
    """
    for metric in shares:
        own = scores.filter(pl.col("metric") == metric)
        lost = own.filter(pl.col("missing") > 0)[ADDRESS].unique()
        own = own.filter(pl.col(ADDRESS).is_in(lost.implode()))
        if own.is_empty():
            continue
        right = (pl.col("value") * pl.col("n")).fill_null(0.0)
        asked = pl.col("n") + pl.col("missing")
        of_seed = own.filter(asked > 0).group_by(ADDRESS, SEED)
        bounds = of_seed.agg(
            (right / asked).mean().alias(f"{metric}_if_wrong"),
            ((right + pl.col("missing")) / asked).mean().alias(f"{metric}_if_right"),
        )
        means = bounds.group_by(ADDRESS).agg(pl.exclude(SEED).mean())
        rows = rows.join(means, on=ADDRESS, how="left", maintain_order="left")
    return rows


def bounds_note(table: TableData) -> list[str]:
    """The range of each share that missing samples leave open, in the row where it is widest."""
    parts = [part for column in table.columns if (part := _widest(table, column))]
    if not parts:
        return []
    return [f"Missing samples all wrong, or all right: {'; '.join(parts)}."]


def _widest(table: TableData, column: Column) -> str:
    names = [f"{column.key}_if_wrong", f"{column.key}_if_right"]
    if names[0] not in table.rows.columns:
        return ""
    known = table.rows.drop_nulls(names)
    row = known.sort(pl.col(names[1]) - pl.col(names[0]), descending=True).row(0, named=True)
    low, high = (number_text(row[n], unit=column.unit, decimals=column.decimals) for n in names)
    labels = " / ".join(
        str(row[c.key]) for c in table.columns if c.kind == "label" and row[c.key] is not None
    )
    count = f"{row[f'{column.key}_missing']} missing"
    others = f", the widest of {known.height} rows" if known.height > 1 else ""
    return f"{column.title} {low} or {high} ({labels}: {count}{others})"


def empty_note(cells: pl.DataFrame) -> list[str]:
    """How many replies came without text, over all rollouts that are scored.

    Args:
        cells: `tables.CELLS`.
    """
    scored = cells.filter(pl.col("kind") == "score")
    reads = (tuple(read.get("rollouts", ())) for _, read in notes_of(scored, "reads"))
    counts = (count for _, count in notes_of(scored, NO_TEXT))
    # several score cells may read the same rollouts
    found = [count for count in dict(zip(reads, counts, strict=True)).values() if count]
    if not found:
        return []
    replies = [count.pop("replies") for count in found]
    empty = [sum(count.values()) for count in found]
    share = number_text(max(map(truediv, empty, replies)), unit="percent")
    return [
        "Empty, refused and filtered replies are wrong in every accuracy: "
        f"{sum(empty):,} replies, at most {share} % of a cell's."
    ]


def unanswered_note(rows: pl.DataFrame) -> list[str]:
    """In how many rows no reply has an answer that can be read, so that they score 0.

    Args:
        rows: The table's rows, with a column for each metric.
    """
    metrics = [name for name in ("exact_match", "math_match") if name in rows.columns]
    if not metrics or "answer_rate" not in rows.columns:
        return []
    no_answer = pl.col("answer_rate") == 0
    count = rows.filter(no_answer, pl.any_horizontal(pl.col(metrics) == 0)).height
    if not count:
        return []
    return [
        f"In {counted(count, 'row')} no reply has an answer in `<answer>` tags, where answers are "
        "read: 0 says that the format was not followed, not what the model knows (`mbt view` shows "
        "the replies)."
    ]


def interval_notes(summary: pl.DataFrame, columns: Sequence[Column]) -> Iterator[str]:
    """Why numbers have no interval, and how many resamples some intervals leave out.

    Args:
        summary: The rows of `rows.SUMMARY` that the table shows.
        columns: The table's columns.
    """
    reasons: dict[str, list[str]] = {}
    left_out = []
    for column in columns:
        own = summary.filter(pl.col("metric") == column.key, pl.col("value").is_not_null())
        settings = [_settings(text) for text in own["settings"]]
        bare = own["low"].is_null() | (own["low"] == own["high"])
        found = [
            one.get("no_interval") or NO_SPREAD
            for one, is_bare in zip(settings, bare, strict=True)
            if is_bare
        ]
        for reason in dict.fromkeys(found):
            rows = found.count(reason)
            where = (
                column.title if rows == own.height else f"{column.title} in {counted(rows, 'row')}"
            )
            reasons.setdefault(str(reason), []).append(where)
        shares = [float(share) for one in settings if (share := one.get("undefined_resamples"))]
        if shares:
            share = number_text(max(shares), unit="percent")
            left_out.append(f"{column.title} up to {share} % in {counted(len(shares), 'row')}")
    if reasons:
        listed = "; ".join(f"{reason} ({', '.join(where)})" for reason, where in reasons.items())
        yield f"[—]: no interval: {listed}."
    if left_out:
        yield f"Undefined bootstrap resamples, left out of intervals: {'; '.join(left_out)}."


_LARGE_CLUSTER = 0.2


def cluster_notes(summary: pl.DataFrame, metrics: Sequence[str]) -> list[str]:
    """How many questions come in how many clusters, by the column that names them."""
    settings = pl.col("settings").str
    counts = (
        summary.filter(pl.col("by").is_null(), pl.col("metric").is_in(list(metrics)))
        .select(
            ADDRESS,
            "n",
            settings.json_path_match(f"$.{CLUSTER}").alias(CLUSTER),
            settings.json_path_match("$.clusters").cast(pl.Int64).alias("clusters"),
            settings.json_path_match("$.largest_cluster").cast(pl.Float64).alias("largest"),
        )
        .drop_nulls("clusters")
        .group_by(CLUSTER, ADDRESS, maintain_order=True)
        .agg(pl.col("n", "clusters", "largest").max())
    )
    notes = []
    for (column,), part in counts.group_by(CLUSTER, maintain_order=True):
        sizes = part.select("n", "clusters").unique(maintain_order=True).rows()
        found = ", ".join(f"{n:,} questions in {clusters:,} clusters" for n, clusters in sizes)
        notes.append(
            f"Questions with the same {column} are one cluster: {found}. Intervals, tests and † "
            "count clusters; McNemar's test is not used where a cluster has several questions."
        )
        largest = pl.Series(part["largest"]).max()
        if isinstance(largest, float) and largest > _LARGE_CLUSTER:
            notes.append(
                f"The largest cluster holds {largest:.0%} of the questions; where one holds over "
                f"{_LARGE_CLUSTER:.0%}, intervals may cover less than 95 % and tests reject more "
                "than 5 %."
            )
    return notes


def _settings(text: str | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(text) if text else {}
    return found
