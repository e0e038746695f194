"""Which rows of a table are not significantly different from the best of their group."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from mbt_cli.core.measures import mean_of_value
from mbt_cli.core.shown_tables import shown_rows
from mbt_cli.core.statistics import Quantity, bootstrap, bootstrap_p, holm, mcnemar_p
from mbt_cli.core.table_rows import ADDRESS, compared_groups
from mbt_cli.core.tables import Column, ReportInputs, TableData

SIGNIFICANT = 0.05
RESAMPLES = 1_000
NOTE = (
    "†: not significantly different from the best (paired on common questions; exact McNemar for "
    f"0 / 1 values, else paired bootstrap; Holm over the column; {SIGNIFICANT:.0%})."
)


def with_ties(table: TableData, inputs: ReportInputs, *, seed: int = 0) -> TableData:
    """The table with KEY_tied for every metric column that has a best and per-question scores.

    The best is the one that is shown as such. A number that is not a mean over questions (AES and
    its like) has no per-question scores and gets no mark; nor has a breakdown, where a cell has
    several rows.

    Args:
        table: Its rows hold `address`; columns are named for metrics.
        inputs: Where the per-question scores are.
        seed: Of the bootstrap.
    """
    if table.rows[ADDRESS].is_duplicated().any():
        return table
    columns = [c for c in table.columns if c.kind == "number" and c.best != "none"]
    scores = _scores(inputs, [column.key for column in columns])
    rows, is_marked = table.rows, False
    for column in columns:
        tied = _tied(table, column, scores, seed)
        is_marked = is_marked or any(tied)
        rows = rows.with_columns(pl.Series(f"{column.key}_tied", tied, dtype=pl.Boolean))
    return TableData(
        name=table.name,
        title=table.title,
        columns=table.columns,
        rows=rows,
        notes=[*table.notes, *([NOTE] if is_marked else [])],
        compared_within=table.compared_within,
    )


Scores = dict[tuple[str, str], pl.DataFrame]
"""(address, metric) to its questions with a value."""


def _scores(inputs: ReportInputs, metrics: Sequence[str]) -> Scores:
    if not inputs.scores.collect_schema().names():
        return {}
    wanted = inputs.scores.filter(pl.col("metric").is_in(metrics) & pl.col("value").is_not_null())
    frame = wanted.select(ADDRESS, "metric", "question_id", "value").collect()
    parts = frame.partition_by(ADDRESS, "metric", as_dict=True)
    return {(str(key[0]), str(key[1])): part for key, part in parts.items()}


def _tied(table: TableData, column: Column, scores: Scores, seed: int) -> list[bool]:
    place = list(table.columns).index(column)
    cells = [row[place] for row in shown_rows(table)]
    addresses = table.rows[ADDRESS].to_list()
    p_values: list[float | None] = [None] * len(cells)
    for group in compared_groups(table):
        best = next((row for row in group["row"] if cells[row].rank == "best"), None)
        for row in group["row"]:
            if best is not None and cells[row].rank != "best":
                p_values[row] = _p(scores, column.key, addresses[best], addresses[row], seed)
    return [p is not None and p >= SIGNIFICANT for p in holm(p_values)]


def _p(scores: Scores, metric: str, best: str, other: str, seed: int) -> float | None:
    mine, theirs = scores.get((best, metric)), scores.get((other, metric))
    if mine is None or theirs is None:
        return None
    both = mine.join(theirs, on="question_id", suffix="_other").sort("question_id")
    if both.is_empty():
        return None
    values, others = both["value"].to_numpy(), both["value_other"].to_numpy()
    if np.isin(values, (0.0, 1.0)).all() and np.isin(others, (0.0, 1.0)).all():
        return mcnemar_p(int((values > others).sum()), int((values < others).sum()))
    difference = Quantity({"value": values - others}, mean_of_value)
    (drawn,) = bootstrap([difference], resamples=RESAMPLES, seed=seed)
    return bootstrap_p(drawn)
