"""Notes in a cell's lineage that tables and figures read.

A stage that filters data writes `notes["funnel"]`: step to count in order, such as
`{"rollouts": 100, "kept": 60, "traces": 240, "passed": 200}`. A train stage writes
`notes["training"]`: facts such as steps, epochs and last loss, and the curve. A score stage writes
`notes["no_text"]` if replies came without usable text: the count of each kind, and `replies`, the
number of all that came.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import polars as pl

FUNNEL = "funnel"
TRAINING = "training"
NO_TEXT = "no_text"

FUNNEL_ROWS = pl.Schema(
    {
        "address": pl.String(),
        "stage": pl.String(),
        "step": pl.String(),
        "count": pl.Int64(),
        "of_first": pl.Float64(),
        "of_previous": pl.Float64(),
    }
)

_DATA_KINDS = ("rollout", "synthesize", "rewrite", "train")


def notes_of(cells: pl.DataFrame, key: str) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Every cell with the object under `key` in its notes; empty if there is none."""
    for cell in cells.iter_rows(named=True):
        found = orjson.loads(cell["notes"] or "{}").get(key)
        yield cell, found if isinstance(found, dict) else {}


def funnel_rows(cells: pl.DataFrame) -> pl.DataFrame:
    """One row per data cell and step, with fractions of the first and of the previous step.

    A cell without a funnel has two steps: its rows, and those that did not fail.

    Args:
        cells: `tables.CELLS`.
    """
    found = []
    for cell, funnel in notes_of(cells.filter(pl.col("kind").is_in(_DATA_KINDS)), FUNNEL):
        whole = {"rows": cell["rows"], "not failed": cell["rows"] - cell["failed_rows"]}
        steps = funnel or whole
        counts = list(steps.values())
        for step, count, before in zip(steps, counts, [None, *counts], strict=False):
            found.append(
                {
                    "address": cell["address"],
                    "stage": cell["stage"],
                    "step": step,
                    "count": count,
                    "of_first": count / counts[0] if counts[0] else None,
                    "of_previous": count / before if before else None,
                }
            )
    return pl.DataFrame(found, schema=FUNNEL_ROWS)


def curves(cells: pl.DataFrame, metric: str) -> dict[str, tuple[list[float], list[float]]]:
    """Address of a train cell to steps and values, from `notes["training"]["curve"]`.

    A curve is a list of objects such as `{"step": 10, "loss": 1.2}`. Points and cells without the
    metric are omitted.
    """
    found = {}
    for cell, training in notes_of(cells.filter(pl.col("kind") == "train"), TRAINING):
        points = [p for p in training.get("curve", []) if p.get(metric) is not None]
        if points:
            steps = [float(point["step"]) for point in points]
            found[cell["address"]] = (steps, [float(point[metric]) for point in points])
    return found


def curves_of_sources(
    cells: pl.DataFrame, metric: str
) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Benchmark to the curves of a metric on its questions, for trainings on several benchmarks.

    The log calls them `METRIC:BENCHMARK`.
    """
    names = {
        name: None
        for _, training in notes_of(cells.filter(pl.col("kind") == "train"), TRAINING)
        for point in training.get("curve", [])
        for name in point
        if name.startswith(f"{metric}:")
    }
    found = {name.removeprefix(f"{metric}:"): curves(cells, name) for name in names}
    return {source: lines for source, lines in found.items() if lines}
