"""The figures of beliefs: calibration, beliefs along a reasoning, policies beside what is known."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import orjson
import polars as pl
from pydantic import Field

from mbt_cli.core.number_text import number_text
from mbt_cli.core.tables import ReportInputs
from mbt_cli.interfaces import Figure
from mbt_cli.report import figure_style as style
from mbt_cli.report.figure_style import METHOD, MODEL, Panel, axis_title, names, panels, scale
from mbt_cli.report.notes import ADDRESS
from mbt_cli.scores.relations import spearman
from mbt_cli.scores.statistics import wilson

_ECE = "calibration_ece"
_CHANGE = "martingale_change"
_LARGEST_POINT = 60


class Reliability(Figure):
    """How often what is believed with p comes true, one line per cell.

    Calibrated beliefs lie on the diagonal. One panel per benchmark. Points have an area by their
    share of the beliefs, and Wilson intervals as if the events of a bin were independent.
    """

    title: ClassVar[str] = "Calibration"
    kind: Literal["reliability"] = "reliability"
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return ("calibration",)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        curves = _settings(inputs, _ECE, "curve")
        found = _with_points(panels(inputs, (_ECE,)), curves)
        if not found:
            return ()
        lines = _lines(found)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                axis.plot([0, 1], [0, 1], color="#888888", linewidth=0.8, zorder=1)
                for row in panel.rows.iter_rows(named=True):
                    one = style.look(lines, _line(row))
                    p, o, share = map(list, zip(*curves[row[ADDRESS]], strict=True))
                    axis.plot(p, o, color=one["color"], linestyle=one["linestyle"])
                    area = [_LARGEST_POINT * part for part in share]
                    axis.scatter(p, o, s=area, color=one["color"], marker=one["marker"])
                    for place, rate, part in curves[row[ADDRESS]]:
                        n = max(1.0, part * row[f"{_ECE}_n"])
                        ends = wilson(min(max(rate, 0.0), 1.0) * n, n)
                        axis.plot(
                            [place] * 2, [ends.low, ends.high], color=one["color"], linewidth=0.6
                        )
                axis.set(title=panel.title, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
                axis.set(xlabel="stated probability", ylabel="share that came true")
            handles = style.line_handles(lines, markers=True)
            style.legend(figure, handles, columns=self.columns)
            return style.save(figure, into, self.kind)


class BeliefPaths(Figure):
    """Mean beliefs from before a reasoning to its end, one line per cell."""

    title: ClassVar[str] = "Beliefs while reasoning"
    kind: Literal["belief_paths"] = "belief_paths"
    show: Literal["truth", "moved"] = "truth"
    """`truth`: the belief in what came true. `moved`: how far beliefs are from the first ones, half
    the sum of the absolute differences, which needs no outcome."""
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return ("martingale",)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        column = 2 if self.show == "truth" else 1
        paths = {
            address: [(point[0], point[column]) for point in path]
            for address, path in _settings(inputs, _CHANGE, "path").items()
            if all(point[column] is not None for point in path)
        }
        found = _with_points(panels(inputs, (_CHANGE,)), paths)
        if not found:
            return ()
        lines = _lines(found)
        label = "belief in what came true" if self.show == "truth" else "distance from the first"
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for row in panel.rows.iter_rows(named=True):
                    one = style.look(lines, _line(row))
                    x, y = zip(*paths[row[ADDRESS]], strict=True)
                    axis.plot(
                        [100 * part for part in x], y, color=one["color"],
                        linestyle=one["linestyle"], marker=one["marker"], markersize=3,
                    )  # fmt: skip
                axis.set(title=panel.title, xlabel="share of the steps (%)", ylabel=label)
            handles = style.line_handles(lines, markers=True)
            style.legend(figure, handles, columns=self.columns)
            return style.save(figure, into, f"{self.kind}_{self.show}")


class PoliciesFigure(Figure):
    """A metric of each model by a published number, such as an Elo or a size.

    The rank correlation over cells stands above each panel. One panel per benchmark; points have
    95 % intervals. Models without a number are left out.
    """

    title: ClassVar[str] = "Policies"
    kind: Literal["policies"] = "policies"
    metric: str = "brier"
    """The metric on the vertical axis."""
    published: dict[str, float] = Field(default_factory=dict)
    """Model to its published number, on the horizontal axis."""
    published_title: str = "published"
    """Title of the horizontal axis."""
    scale: Literal["linear", "log"] = "linear"
    """Scale of the horizontal axis; `log` suits sizes."""
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return (self.metric,)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = [
            Panel(panel.title, rows)
            for panel in panels(inputs, (self.metric,))
            if (rows := panel.rows.filter(pl.col(MODEL).is_in(list(self.published)))).height
        ]
        if not found:
            return ()
        methods = names(found, METHOD)
        factor = scale(self.metric)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for row in panel.rows.iter_rows(named=True):
                    one = style.look(methods, row[METHOD])
                    value = row[self.metric]
                    low, high = row[f"{self.metric}_low"], row[f"{self.metric}_high"]
                    x = self.published[row[MODEL]]
                    if low is not None and high is not None:
                        ends = [factor * low, factor * high]
                        axis.plot([x, x], ends, color=one["color"], linewidth=0.6)
                    axis.plot([x], [factor * value], color=one["color"], marker=one["marker"])
                    axis.annotate(row[MODEL], (x, factor * value), fontsize=5.5, xytext=(3, 3),
                                  textcoords="offset points")  # fmt: skip
                if self.scale == "log":
                    style.logarithmic(axis.set_xscale, axis.xaxis)
                numbers = [self.published[model] for model in panel.rows[MODEL]]
                related = spearman(np.array(numbers), panel.rows[self.metric].to_numpy())
                parts = [panel.title]
                if related is not None:
                    parts.append(f"rank correlation {number_text(related.value, decimals=2)}")
                axis.set(title=", ".join(part for part in parts if part))
                axis.set(xlabel=self.published_title, ylabel=axis_title(inputs, self.metric))
            handles = style.line_handles(methods, markers=True)
            style.legend(figure, handles, columns=self.columns)
            return style.save(figure, into, f"{self.kind}_{self.metric}")


def _settings(inputs: ReportInputs, metric: str, key: str) -> dict[str, Any]:
    """Address to a value in the settings of a metric over all questions."""
    own = inputs.summary.filter(pl.col("metric") == metric, pl.col("by").is_null())
    read = {
        row[ADDRESS]: orjson.loads(row["settings"] or "{}") for row in own.iter_rows(named=True)
    }
    return {address: settings[key] for address, settings in read.items() if settings.get(key)}


def _with_points(found: Sequence[Panel], points: Collection[str]) -> list[Panel]:
    """The panels with the cells that have points."""
    kept = [
        Panel(panel.title, panel.rows.filter(pl.col(ADDRESS).is_in(list(points))))
        for panel in found
    ]
    return [panel for panel in kept if panel.rows.height]


def _line(row: dict[str, Any]) -> str:
    return f"{row[MODEL]} {row[METHOD]}".strip()


def _lines(found: Sequence[Panel]) -> list[str]:
    rows = (row for panel in found for row in panel.rows.iter_rows(named=True))
    return list(dict.fromkeys(_line(row) for row in rows))
