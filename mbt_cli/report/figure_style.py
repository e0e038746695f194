"""The common style of the figures: panels, sizes, fonts, colours, marks, legends and files.

The colours are those of Okabe and Ito, which readers with any colour vision can tell apart.
Markers, line styles and hatches repeat the distinction for readers of a greyscale print.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from mbt_cli.core.tables import ReportInputs
from mbt_cli.report.metrics import (
    cell_rows,
    display_here,
    display_of,
    display_title,
    present,
    varying,
)

Columns = Literal[1, 2]
"""Width of a figure in columns of a two-column paper."""
METHOD, MODEL = "method_name", "model_name"

_PANEL_AXES = ("benchmark", "split")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LINES: Sequence[Any] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_FILLS: Sequence[Any] = ("full", "none", "left", "bottom", "right", "top")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "ooo", "+++")

_WIDTHS_INCHES = {1: 3.4, 2: 7.0}
_PANEL_HEIGHT_INCHES = 2.3
_LEGEND_INCHES_PER_LINE = 0.17
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # part of matplotlib, so every machine draws the same
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 5,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # a name with dollar signs is shown as it is
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # embeds TrueType fonts, so that text can be selected
    "svg.fonttype": "path",  # draws text as paths, so that no viewer needs the font
    "svg.hashsalt": "mbt",  # equal figures give equal files
    "savefig.dpi": 200,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes of a figure.

    Args:
        title: The panel's axis values, empty for a figure of one panel.
        rows: Rows of `cell_rows`, with METHOD (variant, prompt, ...: shown by colour) and MODEL.
    """

    title: str
    rows: pl.DataFrame


def panels(
    inputs: ReportInputs,
    metrics: Sequence[str],
    *,
    by: Sequence[str] = _PANEL_AXES,
    optional: Sequence[str] = (),
    across: str | None = None,
) -> list[Panel]:
    """Finished cells that have every metric, one panel per combination of the axes in `by`.

    Args:
        inputs: The study's numbers.
        metrics: What each cell must have.
        by: Axes of the panels.
        optional: Metrics whose columns are added, null where a cell has none.
        across: An axis of the cells that the figure shows along an axis of its own.

    Returns:
        No panels if no cell has all the metrics.
    """
    if len(present(inputs, metrics)) < len(metrics):
        return []
    rows = cell_rows(inputs, [*metrics, *optional]).drop_nulls(list(metrics))
    labels = varying(rows, inputs.axes)
    split = [axis for axis in by if axis in labels]
    methods = [axis for axis in labels if axis not in (*_PANEL_AXES, "model", across)]
    method = pl.concat_str(methods, separator=" / ", ignore_nulls=True) if methods else pl.lit("")
    model = pl.col("model") if "model" in rows.columns else pl.lit("")
    rows = rows.with_columns(method.alias(METHOD), model.alias(MODEL))
    if not split:
        return [Panel("", rows)] if rows.height else []
    parts = rows.partition_by(split, maintain_order=True)
    return [Panel(", ".join(str(part[axis][0]) for axis in split), part) for part in parts]


def names(found: Sequence[Panel], column: str) -> list[str]:
    """The methods or models of all panels, so that each has the same style in every panel."""
    return list(dict.fromkeys(name for panel in found for name in panel.rows[column]))


def axis_title(inputs: ReportInputs, metric: str) -> str:
    """Title of an axis that shows a metric."""
    title = display_title(metric, inputs)
    unit = display_here(inputs, metric).unit
    return f"{title} (%)" if unit == "percent" else title


def scale(metric: str) -> float:
    """The factor from a stored value to the value shown."""
    return 100.0 if display_of(metric).unit == "percent" else 1.0


ACCURACIES = ("judge_accuracy", "math_match", "exact_match")
"""Accuracies that figures show, the preferred one first."""


def accuracy_of(inputs: ReportInputs) -> str:
    """The accuracy to show: the judge's, else math match, else exact match."""
    return next(iter(present(inputs, ACCURACIES[:-1])), ACCURACIES[-1])


@contextmanager
def drawing(panels: int, columns: Columns, *, across: int = 3) -> Iterator[tuple[Any, list[Any]]]:
    """A figure in this style, and the axes of its panels in reading order.

    Args:
        panels: Number of panels.
        columns: Width of the figure.
        across: Maximum panels per row in a figure of two columns; half as many in one column.
    """
    import matplotlib
    from matplotlib.figure import Figure

    wide = min(panels, max(1, across * columns // 2))
    rows = -(-panels // wide)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's matplotlibrc must not change the figures
        matplotlib.rcParams.update(_STYLE)
        size = (_WIDTHS_INCHES[columns], rows * _PANEL_HEIGHT_INCHES)
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(rows, wide, squeeze=False).flat)
        for empty in axes[panels:]:
            empty.set_visible(False)
        yield figure, axes[:panels]


def look(names: Sequence[str], name: str) -> dict[str, Any]:
    """Colour, marker, line style and hatch of one name among the names of a figure."""
    number = names.index(name)
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _LINES[number % len(_LINES)],
        "hatch": _HATCHES[number % len(_HATCHES)],
    }


def points(
    axis: Any, panel: Panel, metrics: tuple[str, str], methods: Sequence[str], models: Sequence[str]
) -> None:
    """One point per row with its intervals: colour and marker by method, fill by model."""
    for row in panel.rows.iter_rows(named=True):
        (x, around_x), (y, around_y) = (_with_interval(row, metric) for metric in metrics)
        marker = _point(methods, row[METHOD], models, row[MODEL])
        axis.errorbar([x], [y], xerr=around_x, yerr=around_y, elinewidth=0.6, **marker)


def point_handles(methods: Sequence[str], models: Sequence[str]) -> list[Any]:
    """Legend of `points`: methods, and models if there are several."""
    from matplotlib.lines import Line2D

    def handle(label: str, method: str, model: str) -> Any:
        return Line2D([], [], label=label, **_point(methods, method, models, model))

    named = [handle(method, method, models[0]) for method in methods if method]
    if named and len(models) == 1:
        return named
    fills = [handle(model, methods[0], model) for model in models if model]
    for fill in fills if named else []:
        fill.set(color="#555555", marker="o", markeredgecolor="#555555")
    return [*named, *fills]


def _point(
    methods: Sequence[str], method: str, models: Sequence[str], model: str
) -> dict[str, Any]:
    """The look of a point; if there is one method only, the model also decides the colour."""
    one = look(methods, method) if len(methods) > 1 else look(models, model)
    return {
        "color": one["color"],
        "marker": one["marker"],
        "markeredgecolor": one["color"],
        "markerfacecoloralt": "white",
        "fillstyle": _FILLS[models.index(model) % len(_FILLS)],
        "linestyle": "none",
    }


def bars(axis: Any, panel: Panel, metric: str, methods: Sequence[str]) -> None:
    """Bars with intervals: a group per model, a bar per method."""
    models = list(dict.fromkeys(panel.rows[MODEL]))
    width = 0.8 / len(methods)
    for row in panel.rows.iter_rows(named=True):
        one = look(methods, row[METHOD])
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

    looks = {method: look(methods, method) for method in methods if method}
    return [
        Patch(facecolor=one["color"], hatch=one["hatch"], edgecolor="white", label=method)
        for method, one in looks.items()
    ]


def line_handles(names: Sequence[str], *, markers: bool = False) -> list[Any]:
    """Legend of lines that differ in colour and style."""
    from matplotlib.lines import Line2D

    looks = {name: look(names, name) for name in names if name}
    return [
        Line2D(
            [], [], color=one["color"], linestyle=one["linestyle"], label=name,
            marker=one["marker"] if markers else None,
        )
        for name, one in looks.items()
    ]  # fmt: skip


def _with_interval(row: dict[str, Any], metric: str) -> tuple[float, list[list[float]] | None]:
    """The displayed value, and the distances to the ends of its interval."""
    factor = scale(metric)
    value, low, high = (row[f"{metric}{part}"] for part in ("", "_low", "_high"))
    if low is None or high is None:
        return value * factor, None
    below, above = max(0.0, value - low), max(0.0, high - value)
    return value * factor, [[below * factor], [above * factor]]


def legend(figure: Any, handles: Sequence[Any], *, columns: Columns) -> None:
    """Add one legend below all panels, with space for it."""
    if not handles:
        return
    longest = max(len(handle.get_label()) for handle in handles)
    characters = 44 * columns
    across = max(1, min(len(handles), characters // (longest + 6)))
    width, height = figure.get_size_inches()
    lines = -(-len(handles) // across)
    figure.set_size_inches(width, height + lines * _LEGEND_INCHES_PER_LINE)
    figure.legend(handles=handles, loc="outside lower center", ncols=across)


def logarithmic(set_scale: Callable[[str], None], axis: Any) -> None:
    """Make an axis logarithmic, with ticks at 1, 2, 5, 10, ... as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Any, into: Path, name: str) -> list[Path]:
    """Write the figure as SVG, PDF and PNG, without the date, so equal figures are equal files."""
    into.mkdir(parents=True, exist_ok=True)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
    paths = {suffix: into / f"{name}{suffix}" for suffix in metadata}
    for suffix, path in paths.items():
        figure.savefig(path, metadata=metadata[suffix])
    return list(paths.values())
