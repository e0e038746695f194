"""Which rows of a table are not significantly different from the best of their group."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.measures import mean_of_value
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.report.rows import ADDRESS, compared_groups
from mbt_cli.report.shown import shown_rows
from mbt_cli.scores.statistics import Quantity, bootstrap, bootstrap_p, holm, mcnemar_p

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
    rows, is_marked = table.rows, False
    scores = _scores(inputs, [column.key for column in columns])
    for column in columns:
        tied = _tied(table, column, scores.get(column.key, {}), seed)
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


Scores = dict[str, pl.DataFrame]
"""Address to the questions with a value of one metric."""


def _scores(inputs: ReportInputs, metrics: Sequence[str]) -> Mapping[str, Scores]:
    """All metrics in one pass: opening hundreds of files takes longer than reading them."""
    if not inputs.scores.collect_schema().names():
        return {}
    is_wanted = pl.col("metric").is_in(list(metrics)) & pl.col("value").is_not_null()
    frame = inputs.scores.filter(is_wanted).select("metric", ADDRESS, "question_id", "value")
    found: dict[str, Scores] = {}
    parts = frame.collect().partition_by("metric", ADDRESS, as_dict=True, include_key=False)
    for (metric, address), part in parts.items():
        found.setdefault(str(metric), {})[str(address)] = part
    return found


def _tied(table: TableData, column: Column, scores: Scores, seed: int) -> list[bool]:
    place = list(table.columns).index(column)
    ranks = [row[place].rank for row in shown_rows(table)]
    addresses = table.rows[ADDRESS].to_list()
    pairs: dict[int, Pair] = {}
    for group in compared_groups(table):
        best = next((row for row in group["row"] if ranks[row] == "best"), None)
        for row in group["row"]:
            if best is not None and ranks[row] != "best":
                pair = _pair(scores.get(addresses[best]), scores.get(addresses[row]))
                pairs.update({row: pair} if pair else {})
    found = dict(zip(pairs, holm(_p_values(list(pairs.values()), seed)), strict=True))
    return [(found.get(row) or 0.0) >= SIGNIFICANT for row in range(len(ranks))]


Pair = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Values of the best and of another row on their common questions."""


def _pair(best: pl.DataFrame | None, other: pl.DataFrame | None) -> Pair | None:
    if best is None or other is None:
        return None
    both = best.join(other, on="question_id", suffix="_other").sort("question_id")
    if both.is_empty():
        return None
    return both["value"].to_numpy(), both["value_other"].to_numpy()


def _p_values(pairs: Sequence[Pair], seed: int) -> list[float | None]:
    """One test a pair; those that need the bootstrap share their resamples, so many cost little."""
    p_values: list[float | None] = [None] * len(pairs)
    drawn_for: dict[int, Quantity] = {}
    for number, (best, other) in enumerate(pairs):
        if all(np.isin(values, (0.0, 1.0)).all() for values in (best, other)):
            p_values[number] = mcnemar_p(int((best > other).sum()), int((best < other).sum()))
        else:
            drawn_for[number] = Quantity({"value": best - other}, mean_of_value)
    if drawn_for:
        drawn = bootstrap(list(drawn_for.values()), resamples=RESAMPLES, seed=seed)
        for number, differences in zip(drawn_for, drawn, strict=True):
            p_values[number] = bootstrap_p(differences)
    return p_values
