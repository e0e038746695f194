"""Training curves: the loss of every run over its steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.addresses import short_names
from mbt_cli.core.notes import curves
from mbt_cli.core.tables import ReportInputs
from mbt_cli.interfaces import Figure
from mbt_cli.report import figure_style, marks
from mbt_cli.report.figure_style import (
    METHOD,
    MODEL,
    Panel,
    accuracy_of,
    axis_title,
    names,
    panels,
    pareto_front,
    scale,
)
from mbt_cli.report.metrics import PHASES, shown
from mbt_cli.report.rows import present


class AccuracyTokens(Figure):
    """One point a cell: mean tokens and accuracy with 95 % intervals, one panel a benchmark.

    The line joins the points that no other one beats on both.
    """

    kind: Literal["accuracy_tokens"] = "accuracy_tokens"
    accuracy: str | None = None
    """Metric on the upright axis; left out, the judge's accuracy, else exact match."""
    columns: figure_style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        accuracy = self.accuracy or accuracy_of(inputs)
        found = panels(inputs, ("tokens", accuracy))
        if not found:
            return ()
        methods, models = names(found, METHOD), names(found, MODEL)
        with figure_style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                marks.points(axis, panel, ("tokens", accuracy), methods, models)
                _front(axis, panel, accuracy)
                axis.set(
                    title=panel.title,
                    xlabel=axis_title(inputs, "tokens"),
                    ylabel=axis_title(inputs, accuracy),
                )
            figure_style.legend(figure, marks.point_handles(methods, models), columns=self.columns)
            return figure_style.save(figure, into, self.kind)


def _front(axis: Any, panel: Panel, accuracy: str) -> None:
    tokens, right = panel.rows["tokens"].to_list(), panel.rows[accuracy].to_list()
    front = pareto_front(tokens, right)
    factor = scale(accuracy)
    axis.plot(
        [tokens[i] for i in front],
        [right[i] * factor for i in front],
        color="#888888",
        linewidth=0.8,
        zorder=1,
    )


_ERRORS = ("answer_inclusive_errors", "answer_inclusive_errors_words")
_PARTS = ("right", "wrong, but the trace reaches the answer", "wrong")


class AnswerInclusiveErrorsFigure(Figure):
    """One stacked bar a cell, one panel a benchmark."""

    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"
    columns: figure_style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        errors = next(iter(present(inputs, _ERRORS)), _ERRORS[0])
        accuracy = accuracy_of(inputs)
        found = panels(inputs, (accuracy, errors))
        if not found:
            return ()
        with figure_style.drawing(len(found), self.columns, across=2) as (figure, axes):
            tallest = max(panel.rows.height for panel in found)
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, height * max(1.0, tallest / 10))
            for axis, panel in zip(axes, found, strict=True):
                labels = []
                for place, row in enumerate(panel.rows.iter_rows(named=True)):
                    _bar(axis, place, row[accuracy], row[errors])
                    labels.append(" / ".join(n for n in (row[MODEL], row[METHOD]) if n))
                axis.set_yticks(range(len(labels)), labels)
                axis.invert_yaxis()
                axis.set(title=panel.title, xlim=(0, 100), xlabel="predictions (%)")
                axis.grid(visible=False, axis="y")
            figure_style.legend(figure, _handles(), columns=self.columns)
            return figure_style.save(figure, into, self.kind)


def _bar(axis: Any, place: int, right: float, reached: float) -> None:
    start = 0.0
    for part, share in zip(_PARTS, (right, reached, max(0.0, 1 - right - reached)), strict=True):
        axis.barh(place, 100 * share, left=start, height=0.75, edgecolor="white", **_look(part))
        start += 100 * share


def _look(part: str) -> dict[str, Any]:
    one = figure_style.look(_PARTS, part)
    return {"facecolor": one["color"], "hatch": one["hatch"], "linewidth": 0}


def _handles() -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(edgecolor="white", label=part, **_look(part)) for part in _PARTS]


class MQIBars(Figure):
    """One bar a cell with its 95 % interval, one panel a benchmark."""

    kind: Literal["mqi_bars"] = "mqi_bars"
    metric: Literal["mqi", "mqi_of_means", "mqi_level"] = "mqi"
    """Mean over samples, the method-level form, or the judge's level alone."""
    columns: figure_style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = panels(inputs, (self.metric,))
        if not found:
            return ()
        methods = names(found, METHOD)
        with figure_style.drawing(len(found), self.columns, across=2) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                marks.bars(axis, panel, self.metric, methods)
                axis.set(title=panel.title, ylabel=axis_title(inputs, self.metric))
            figure_style.legend(figure, marks.bar_handles(methods), columns=self.columns)
            return figure_style.save(figure, into, self.kind)


class PhaseProfile(Figure):
    """One line a method over the five phases, one panel a benchmark and model."""

    kind: Literal["phase_profile"] = "phase_profile"
    columns: figure_style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = panels(inputs, PHASES, by=("benchmark", "split", "model"))
        if not found:
            return ()
        methods = names(found, METHOD)
        with figure_style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for row in panel.rows.iter_rows(named=True):
                    one = figure_style.look(methods, row[METHOD])
                    del one["hatch"]
                    axis.plot(range(len(PHASES)), [100 * row[phase] for phase in PHASES], **one)
                titles = [shown(phase).title for phase in PHASES]
                axis.set_xticks(range(len(PHASES)), titles, rotation=35, ha="right")
                axis.set(title=panel.title, ylabel="traces with the phase (%)", ylim=(0, 100))
            figure_style.legend(
                figure, marks.line_handles(methods, markers=True), columns=self.columns
            )
            return figure_style.save(figure, into, self.kind)


_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


class RegulationPlane(Figure):
    """One point a cell; grey lines join places of equal regulation, better towards lower left."""

    kind: Literal["regulation_plane"] = "regulation_plane"
    length_aware: bool = False
    """Whether arrival and redundancy are taken against the baseline's length."""
    columns: figure_style.Columns = 1
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        suffix = "_length_aware" if self.length_aware else ""
        metrics = (f"rrp_arrival{suffix}", f"rrp_redundancy{suffix}")
        found = panels(inputs, metrics)
        if not found:
            return ()
        methods, models = names(found, METHOD), names(found, MODEL)
        with figure_style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                _contours(axis)
                marks.points(axis, panel, metrics, methods, models)
                axis.set(title=panel.title, xlim=(0, 1), ylim=(0, 1))
                axis.set(xlabel=axis_title(inputs, metrics[0]))
                axis.set(ylabel=axis_title(inputs, metrics[1]))
                axis.grid(visible=False)
            figure_style.legend(figure, marks.point_handles(methods, models), columns=self.columns)
            return figure_style.save(figure, into, f"{self.kind}{suffix}")


def _contours(axis: Any) -> None:
    """Lines of equal regulation, the harmonic mean of 1 - arrival and 1 - redundancy."""
    left = np.linspace(1, 1e-6, 101)
    early, lean = np.meshgrid(left, left)
    regulation = 2 * early * lean / (early + lean)
    lines = axis.contour(
        1 - early, 1 - lean, regulation, levels=_LEVELS, colors="#BBBBBB", linewidths=0.6
    )
    axis.clabel(lines, fmt="%.1f", fontsize=6)


class ResponseLengths(Figure):
    """Share of questions whose mean reply has at most so many tokens, one line a method."""

    kind: Literal["response_lengths"] = "response_lengths"
    columns: figure_style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = panels(inputs, ("tokens",), by=("benchmark", "split", "model"))
        if not found:
            return ()
        methods, lengths = names(found, METHOD), _lengths(inputs)
        with figure_style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for row in panel.rows.iter_rows(named=True):
                    values = lengths.get(row["address"], np.empty(0))
                    one = figure_style.look(methods, row[METHOD])
                    if values.size:
                        axis.ecdf(values, color=one["color"], linestyle=one["linestyle"])
                figure_style.logarithmic(axis.set_xscale, axis.xaxis)
                axis.set(title=panel.title, ylim=(0, 1))
                axis.set(xlabel="tokens", ylabel="share of questions")
            figure_style.legend(figure, marks.line_handles(methods), columns=self.columns)
            return figure_style.save(figure, into, self.kind)


def _lengths(inputs: ReportInputs) -> dict[str, npt.NDArray[np.float64]]:
    """Address to the mean tokens of each question, those of length 0 left out: the axis is log."""
    known = (pl.col("metric") == "tokens") & (pl.col("value") > 0)
    frame = inputs.scores.filter(known).select("address", "value").collect()
    parts = frame.partition_by("address", as_dict=True)
    return {str(key[0]): part["value"].to_numpy() for key, part in parts.items()}


class TrainingCurves(Figure):
    """One line a trained cell: what its run logged, step by step."""

    kind: Literal["training_curves"] = "training_curves"
    metric: str = "loss"
    """What is drawn: a name that the run logged, such as `loss` or `reward`."""
    columns: figure_style.Columns = 1
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = curves(inputs.cells, self.metric)
        if not found:
            return ()
        runs = short_names(list(found))
        with figure_style.drawing(1, self.columns) as (figure, (axis,)):
            for run, (steps, values) in zip(runs, found.values(), strict=True):
                one = figure_style.look(runs, run)
                axis.plot(steps, values, color=one["color"], linestyle=one["linestyle"])
            axis.set(xlabel="step", ylabel=self.metric.replace("_", " "))
            figure_style.legend(figure, marks.line_handles(runs), columns=self.columns)
            return figure_style.save(figure, into, self.kind)
