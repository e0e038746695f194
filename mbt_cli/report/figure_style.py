"""The one look of all figures: sizes, fonts, colours that stay apart in grey, files.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; markers,
line styles and hatches say the same once more for readers of a grey print.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from mbt_cli.core.tables import ReportInputs
from mbt_cli.report.metrics import judge_title, shown
from mbt_cli.report.rows import cell_rows, present, varying

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


Columns = Literal[1, 2]
"""Width of a figure in columns of a two-column paper."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: Sequence[Any] = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
FILLS: Sequence[Any] = ("full", "none", "left", "bottom", "right", "top")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "ooo", "+++")

_WIDTHS_INCHES = {1: 3.4, 2: 7.0}
_PANEL_HEIGHT_INCHES = 2.3
_LEGEND_INCHES_A_LINE = 0.17
_SUFFIXES = (".svg", ".pdf", ".png")
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same
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
    "text.parse_math": False,  # a name with dollar signs stays as it is
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # fonts are embedded as they are, so text stays text
    "svg.fonttype": "path",  # and drawn in SVG: no reader needs the font
    "svg.hashsalt": "mbt",  # equal figures are equal files
    "savefig.dpi": 200,
}


@contextmanager
def drawing(panels: int, columns: Columns, *, across: int = 3) -> Iterator[tuple[Any, list[Any]]]:
    """A figure with so many panels in the house style, and their axes in reading order.

    Args:
        panels: How many.
        columns: Width of the figure.
        across: Panels side by side at most, in a figure of two columns; half of it in one.
    """
    import matplotlib
    from matplotlib.figure import Figure

    wide = min(panels, max(1, across * columns // 2))
    rows = -(-panels // wide)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a person's own matplotlibrc must not change the paper's figures
        matplotlib.rcParams.update(_STYLE)
        size = (_WIDTHS_INCHES[columns], rows * _PANEL_HEIGHT_INCHES)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, wide, squeeze=False)
        axes = list(grid.flat)
        for empty in axes[panels:]:
            empty.set_visible(False)
        yield figure, axes[:panels]


def look(names: Sequence[str], name: str) -> dict[str, Any]:
    """Colour, marker, line style and hatch of one name among all names of a figure."""
    number = names.index(name)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
        "hatch": HATCHES[number % len(HATCHES)],
    }


def legend(figure: Any, handles: Sequence[Any], *, columns: Columns) -> None:
    """One legend below all panels, the figure grown by its lines."""
    if not handles:
        return
    longest = max(len(handle.get_label()) for handle in handles)
    characters = 44 * columns
    across = max(1, min(len(handles), characters // (longest + 6)))
    width, height = figure.get_size_inches()
    lines = -(-len(handles) // across)
    figure.set_size_inches(width, height + lines * _LEGEND_INCHES_A_LINE)
    figure.legend(handles=handles, loc="outside lower center", ncols=across)


def logarithmic(set_scale: Callable[[str], None], axis: Any) -> None:
    """A logarithmic axis with ticks at 1, 2, 5, 10, ..., written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Any, into: Path, name: str) -> list[Path]:
    """Write the figure as SVG, PDF and PNG; equal figures give equal files."""
    into.mkdir(parents=True, exist_ok=True)
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
    paths = [into / f"{name}{suffix}" for suffix in _SUFFIXES]
    for path in paths:
        figure.savefig(path, metadata=dated[path.suffix])
    return paths
