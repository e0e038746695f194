"""Marks that several figures draw: points with intervals, bars side by side, their legends."""

from collections.abc import Sequence
from typing import Any

from mbt_cli.report import figure_style
from mbt_cli.report.figure_style import METHOD, MODEL, Panel, scale


def points(
    axis: Any, panel: Panel, metrics: tuple[str, str], methods: Sequence[str], models: Sequence[str]
) -> None:
    """One point a row with its intervals: colour and marker for the method, fill for the model."""
    for row in panel.rows.iter_rows(named=True):
        (x, around_x), (y, around_y) = (_with_interval(row, metric) for metric in metrics)
        marker = _marker(methods, row[METHOD], models, row[MODEL])
        axis.errorbar([x], [y], xerr=around_x, yerr=around_y, elinewidth=0.6, **marker)


def point_handles(methods: Sequence[str], models: Sequence[str]) -> list[Any]:
    """Legend of `points`: methods as colours and markers, models as fills if there are several."""
    from matplotlib.lines import Line2D

    def handle(label: str, method: str, model: str) -> Any:
        return Line2D([], [], label=label, **_marker(methods, method, models, model))

    named = [handle(method, method, models[0]) for method in methods if method]
    if named and len(models) == 1:
        return named
    grey = {"color": "#555555", "marker": "o", "markeredgecolor": "#555555"}
    fills = [handle(model, methods[0], model) for model in models if model]
    for fill in fills if named else []:
        fill.set(**grey)
    return [*named, *fills]


def _marker(
    methods: Sequence[str], method: str, models: Sequence[str], model: str
) -> dict[str, Any]:
    """How a point looks; where there is one method only, the model decides all of it."""
    one = (
        figure_style.look(methods, method) if len(methods) > 1 else figure_style.look(models, model)
    )
    return {
        "color": one["color"],
        "marker": one["marker"],
        "markeredgecolor": one["color"],
        "markerfacecoloralt": "white",
        "fillstyle": figure_style.FILLS[models.index(model) % len(figure_style.FILLS)],
        "linestyle": "none",
    }


def bars(axis: Any, panel: Panel, metric: str, methods: Sequence[str]) -> None:
    """Bars with intervals: a group for each model, a bar for each method."""
    models = list(dict.fromkeys(panel.rows[MODEL]))
    width = 0.8 / len(methods)
    for row in panel.rows.iter_rows(named=True):
        one = figure_style.look(methods, row[METHOD])
        value, around = _with_interval(row, metric)
        place = models.index(row[MODEL]) + (methods.index(row[METHOD]) + 0.5) * width - 0.4
        axis.bar(
            place, value, width * 0.92, yerr=around, color=one["color"], hatch=one["hatch"],
            edgecolor="white", linewidth=0, error_kw={"elinewidth": 0.7, "ecolor": "#333333"},
        )  # fmt: skip
    axis.set_xticks(range(len(models)), models)
    axis.grid(visible=False, axis="x")


def bar_handles(methods: Sequence[str]) -> list[Any]:
    """Legend of `bars`."""
    from matplotlib.patches import Patch

    looks = {method: figure_style.look(methods, method) for method in methods if method}
    return [
        Patch(facecolor=one["color"], hatch=one["hatch"], edgecolor="white", label=method)
        for method, one in looks.items()
    ]


def line_handles(names: Sequence[str], *, markers: bool = False) -> list[Any]:
    """Legend of lines that differ in colour and style."""
    from matplotlib.lines import Line2D

    looks = {name: figure_style.look(names, name) for name in names if name}
    return [
        Line2D(
            [], [], color=one["color"], linestyle=one["linestyle"], label=name,
            marker=one["marker"] if markers else None,
        )
        for name, one in looks.items()
    ]  # fmt: skip


def _with_interval(row: dict[str, Any], metric: str) -> tuple[float, list[list[float]] | None]:
    """Value and distances to the ends of its interval, as shown."""
    factor = scale(metric)
    value, low, high = (row[f"{metric}{part}"] for part in ("", "_low", "_high"))
    if low is None or high is None:
        return value * factor, None
    below, above = max(0.0, value - low), max(0.0, high - value)
    return value * factor, [[below * factor], [above * factor]]
