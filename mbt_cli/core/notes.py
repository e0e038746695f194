"""What stages leave in their lineage for tables: the funnel of the data and the training runs.

A stage that narrows data writes `notes["funnel"]`, an object of step to count in order, such as
`{"rollouts": 100, "kept": 60, "traces": 240, "passed": 200}`. A train stage writes
`notes["training"]`, an object of numbers and texts such as steps, epochs and last loss.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import polars as pl

FUNNEL = "funnel"
TRAINING = "training"
_DATA_KINDS = ("rollout", "synthesize", "rewrite", "train")

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


def notes_of(cells: pl.DataFrame, key: str) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Every cell with its object under `key` in the notes, empty where there is none."""
    for cell in cells.iter_rows(named=True):
        found = orjson.loads(cell["notes"] or "{}").get(key)
        yield cell, found if isinstance(found, dict) else {}


def funnel_rows(cells: pl.DataFrame) -> pl.DataFrame:
    """One row a data cell and step, with shares of the first step and of the one before.

    A cell that told no funnel has two steps: its rows, and those that did not fail.

    Args:
        cells: `tables.CELLS`.
    """
    found = []
    for cell, told in notes_of(cells.filter(pl.col("kind").is_in(_DATA_KINDS)), FUNNEL):
        whole = {"rows": cell["rows"], "not failed": cell["rows"] - cell["failed_rows"]}
        steps = told or whole
        counts = list(steps.values())
        for step, count, before in zip(steps, counts, [None, *counts], strict=False):
            found.append(
                {
                    "address": cell["address"],
                    "stage": cell["stage"],
                    "step": step,
                    "count": count,
                    "of_first": _share(count, counts[0]),
                    "of_previous": _share(count, before),
                }
            )
    return pl.DataFrame(found, schema=FUNNEL_ROWS)


def _share(count: int, whole: int | None) -> float | None:
    return count / whole if whole else None


def curves(cells: pl.DataFrame, metric: str) -> dict[str, tuple[list[float], list[float]]]:
    """Address of a trained cell to steps and values, from `notes["training"]["curve"]`.

    A curve is a list of objects such as `{"step": 10, "loss": 1.2}`; entries without the metric
    are left out, and so are runs without any.
    """
    found = {}
    for cell, told in notes_of(cells.filter(pl.col("kind") == "train"), TRAINING):
        points = [p for p in told.get("curve", []) if p.get(metric) is not None]
        if points:
            steps = [float(point["step"]) for point in points]
            found[cell["address"]] = (steps, [float(point[metric]) for point in points])
    return found
