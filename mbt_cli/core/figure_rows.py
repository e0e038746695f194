"""From score summaries to the points of a figure: panels, and within them series."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from mbt_cli.core.metric_tables import judge_title
from mbt_cli.core.metric_titles import shown
from mbt_cli.core.table_rows import cell_rows, present, varying
from mbt_cli.core.tables import ReportInputs

_PANEL_AXES = ("benchmark", "split")
METHOD, MODEL = "method_name", "model_name"


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes of a figure.

    Args:
        title: What its rows have in common, empty where there is one panel only.
        rows: Rows of `cell_rows`, and `method_name` (variant, prompt, ...: the colour) and
            `model_name` (the marker).
    """

    title: str
    rows: pl.DataFrame


def panels(
    inputs: ReportInputs, metrics: Sequence[str], *, by: Sequence[str] = _PANEL_AXES
) -> list[Panel]:
    """Finished cells that have every metric, one panel for each value of the axes in `by`.

    Args:
        inputs: Everything that was scored.
        metrics: Metrics that the figure needs.
        by: Axes that make panels.

    Returns:
        No panel where no cell has all the metrics.
    """
    if len(present(inputs, metrics)) < len(metrics):
        return []
    rows = cell_rows(inputs, metrics).drop_nulls(list(metrics))
    labels = varying(rows, inputs.axes)
    split = [axis for axis in by if axis in labels]
    methods = [axis for axis in labels if axis not in (*_PANEL_AXES, "model")]
    rows = rows.with_columns(
        _joined(methods).alias(METHOD),
        (pl.col("model") if "model" in rows.columns else pl.lit("")).alias(MODEL),
    )
    if not split:
        return [Panel("", rows)] if rows.height else []
    parts = rows.partition_by(split, maintain_order=True)
    return [Panel(", ".join(str(part[axis][0]) for axis in split), part) for part in parts]


def names(found: Sequence[Panel], column: str) -> list[str]:
    """Every method or model of all panels, in order of appearance: each keeps its look."""
    return list(dict.fromkeys(name for panel in found for name in panel.rows[column]))


def axis_title(inputs: ReportInputs, metric: str) -> str:
    """Heading of an axis that shows a metric."""
    one = shown(metric)
    title = judge_title(metric, inputs) or one.title
    return f"{title} (%)" if one.unit == "percent" else title


def scale(metric: str) -> float:
    """What a stored value is multiplied by to be shown."""
    return 100.0 if shown(metric).unit == "percent" else 1.0


def accuracy_of(inputs: ReportInputs) -> str:
    """The accuracy to show: the judge's where there is one, else exact match."""
    return next(iter(present(inputs, ("judge_accuracy", "math_match"))), "exact_match")


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Numbers of the points that no other point beats on both: less cost and no less gain.

    Example:
        >>> pareto_front([3.0, 1.0, 2.0, 2.0], [0.9, 0.5, 0.4, 0.7])
        [1, 3, 0]
    """
    front: list[int] = []
    best = float("-inf")
    for number in sorted(range(len(costs)), key=lambda i: (costs[i], -gains[i])):
        if gains[number] > best:
            front.append(number)
            best = gains[number]
    return front


def _joined(axes: Sequence[str]) -> pl.Expr:
    if not axes:
        return pl.lit("")
    return pl.concat_str([pl.col(axis) for axis in axes], separator=" / ", ignore_nulls=True)
