"""The figures of a report. `mbt help` prints the first line of each docstring."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.addresses import short_names
from mbt_cli.core.lineage_notes import curves
from mbt_cli.core.tables import ReportInputs
from mbt_cli.interfaces import Figure
from mbt_cli.report import figure_style as style
from mbt_cli.report.figure_style import (
    METHOD,
    MODEL,
    accuracy_of,
    axis_title,
    names,
    panels,
    scale,
)
from mbt_cli.report.metrics import PHASES, display_of, present


class AccuracyTokens(Figure):
    """One point per cell: mean tokens and accuracy with 95 % intervals, one panel per benchmark.

    The line joins the points that no other point beats on both.
    """

    title: ClassVar[str] = "Accuracy and tokens"
    kind: Literal["accuracy_tokens"] = "accuracy_tokens"
    accuracy: str | None = None
    """Metric on the vertical axis; by default the judge's accuracy, else math or exact match."""
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return ("tokens",)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        accuracy = self.accuracy or accuracy_of(inputs)
        found = panels(inputs, ("tokens", accuracy))
        if not found:
            return ()
        methods, models = names(found, METHOD), names(found, MODEL)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                style.points(axis, panel, ("tokens", accuracy), methods, models)
                tokens, right = panel.rows["tokens"].to_list(), panel.rows[accuracy].to_list()
                front = pareto_front(tokens, right)
                axis.plot(
                    [tokens[i] for i in front],
                    [right[i] * scale(accuracy) for i in front],
                    color="#888888",
                    linewidth=0.8,
                    zorder=1,
                )
                axis.set(
                    title=panel.title,
                    xlabel=axis_title(inputs, "tokens"),
                    ylabel=axis_title(inputs, accuracy),
                )
            style.legend(figure, style.point_handles(methods, models), columns=self.columns)
            return style.save(figure, into, self.kind)


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Numbers of the points that no other point beats: at less cost, no less gain.

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


_ERRORS = ("answer_inclusive_errors", "answer_inclusive_errors_words")
_PARTS = ("right", "wrong, but the trace reaches the answer", "wrong")


class AnswerInclusiveErrorsFigure(Figure):
    """One stacked bar per cell, one panel per benchmark."""

    title: ClassVar[str] = "Errors, with answers that contain the right one"
    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return _ERRORS

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        errors = next(iter(present(inputs, _ERRORS)), _ERRORS[0])
        accuracy = accuracy_of(inputs)
        found = panels(inputs, (accuracy, errors))
        if not found:
            return ()
        from matplotlib.patches import Patch

        with style.drawing(len(found), self.columns, across=2) as (figure, axes):
            tallest = max(panel.rows.height for panel in found)
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, height * max(1.0, tallest / 10))
            for axis, panel in zip(axes, found, strict=True):
                labels = []
                for place, row in enumerate(panel.rows.iter_rows(named=True)):
                    right, reached, start = row[accuracy], row[errors], 0.0
                    shares = (right, reached, max(0.0, 1 - right - reached))
                    for part, share in zip(_PARTS, shares, strict=True):
                        axis.barh(place, 100 * share, left=start, height=0.75, **_look(part))
                        start += 100 * share
                    labels.append(" / ".join(n for n in (row[MODEL], row[METHOD]) if n))
                axis.set_yticks(range(len(labels)), labels)
                axis.invert_yaxis()
                axis.set(title=panel.title, xlim=(0, 100), xlabel="predictions (%)")
                axis.grid(visible=False, axis="y")
            handles = [Patch(label=part, **_look(part)) for part in _PARTS]
            style.legend(figure, handles, columns=self.columns)
            return style.save(figure, into, self.kind)


def _look(part: str) -> dict[str, Any]:
    one = style.look(_PARTS, part)
    return {"facecolor": one["color"], "hatch": one["hatch"], "edgecolor": "white", "linewidth": 0}


class MQIBars(Figure):
    """One bar per cell with its 95 % interval, one panel per benchmark."""

    title: ClassVar[str] = "Metacognitive quality"
    kind: Literal["mqi_bars"] = "mqi_bars"
    metric: Literal["mqi", "mqi_of_means", "mqi_level"] = "mqi"
    """The mean over samples, the index of means, or the judge's level alone."""
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return (self.metric,)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = panels(inputs, (self.metric,))
        if not found:
            return ()
        methods = names(found, METHOD)
        with style.drawing(len(found), self.columns, across=2) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                style.bars(axis, panel, self.metric, methods)
                axis.set(title=panel.title, ylabel=axis_title(inputs, self.metric))
            style.legend(figure, style.bar_handles(methods), columns=self.columns)
            return style.save(figure, into, self.kind)


class PhaseProfile(Figure):
    """One line per method over the five phases, one panel per benchmark and model."""

    title: ClassVar[str] = "Phases of the traces"
    kind: Literal["phase_profile"] = "phase_profile"
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return ("mqi",)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = panels(inputs, PHASES, by=("benchmark", "split", "model"))
        if not found:
            return ()
        methods = names(found, METHOD)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for row in panel.rows.iter_rows(named=True):
                    one = style.look(methods, row[METHOD])
                    del one["hatch"]
                    axis.plot(range(len(PHASES)), [100 * row[phase] for phase in PHASES], **one)
                titles = [display_of(phase).title for phase in PHASES]
                axis.set_xticks(range(len(PHASES)), titles, rotation=35, ha="right")
                axis.set(title=panel.title, ylabel="traces with the phase (%)", ylim=(0, 100))
            style.legend(figure, style.line_handles(methods, markers=True), columns=self.columns)
            return style.save(figure, into, self.kind)


_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


class RegulationPlane(Figure):
    """One point per cell, and grey lines of equal regulation; better towards the lower left."""

    title: ClassVar[str] = "Arrival and redundancy"
    kind: Literal["regulation_plane"] = "regulation_plane"
    length_aware: bool = False
    """Whether arrival and redundancy are relative to the baseline's length."""
    columns: style.Columns = 1
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return ("rrp",)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        suffix = "_length_aware" if self.length_aware else ""
        metrics = (f"rrp_arrival{suffix}", f"rrp_redundancy{suffix}")
        found = panels(inputs, metrics)
        if not found:
            return ()
        methods, models = names(found, METHOD), names(found, MODEL)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                _contours(axis)
                style.points(axis, panel, metrics, methods, models)
                axis.set(title=panel.title, xlim=(0, 1), ylim=(0, 1))
                axis.set(xlabel=axis_title(inputs, metrics[0]))
                axis.set(ylabel=axis_title(inputs, metrics[1]))
                axis.grid(visible=False)
            style.legend(figure, style.point_handles(methods, models), columns=self.columns)
            return style.save(figure, into, f"{self.kind}{suffix}")


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
    """Cumulative share of questions by the mean tokens of their replies, one line per method."""

    title: ClassVar[str] = "Lengths of the replies"
    kind: Literal["response_lengths"] = "response_lengths"
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return ("tokens",)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = panels(inputs, ("tokens",), by=("benchmark", "split", "model"))
        if not found:
            return ()
        methods, lengths = names(found, METHOD), _lengths(inputs)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for row in panel.rows.iter_rows(named=True):
                    values = lengths.get(row["address"], np.empty(0))
                    one = style.look(methods, row[METHOD])
                    if values.size:
                        axis.ecdf(values, color=one["color"], linestyle=one["linestyle"])
                style.logarithmic(axis.set_xscale, axis.xaxis)
                axis.set(title=panel.title, ylim=(0, 1))
                axis.set(xlabel="tokens", ylabel="share of questions")
            style.legend(figure, style.line_handles(methods), columns=self.columns)
            return style.save(figure, into, self.kind)


def _lengths(inputs: ReportInputs) -> dict[str, npt.NDArray[np.float64]]:
    """Address to the mean tokens of each question, without 0, as the axis is logarithmic."""
    known = (pl.col("metric") == "tokens") & (pl.col("value") > 0)
    frame = inputs.scores.filter(known).select("address", "value").collect()
    parts = frame.partition_by("address", as_dict=True)
    return {str(key[0]): part["value"].to_numpy() for key, part in parts.items()}


_EVALUATED: Mapping[str, Any] = {"marker": "o", "markersize": 3, "markerfacecolor": "white"}


class TrainingCurves(Figure):
    """One line per trained cell over its steps, one panel per logged value.

    Held-out values of the same name are points.
    """

    title: ClassVar[str] = "Training"
    kind: Literal["training_curves"] = "training_curves"
    metric: str | list[str] = "loss"
    """Names of logged values, such as `loss`; for reinforcement learning also `reward`,
    `reward_NAME`, `reward_std`, `zero_std_groups`, `entropy`, `kl`, `clip_ratio`, `truncated` and
    `completion_length`."""
    columns: style.Columns = 1
    """Width in columns of a two-column paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        metrics = [self.metric] if isinstance(self.metric, str) else self.metric
        every = {metric: curves(inputs.cells, metric) for metric in metrics}
        found = {metric: lines for metric, lines in every.items() if lines}
        if not found:
            return ()
        addresses = [
            cell for cell in inputs.cells["address"] if any(cell in f for f in found.values())
        ]
        runs = short_names(addresses)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, (metric, lines) in zip(axes, found.items(), strict=True):
                for run, address in zip(runs, addresses, strict=True):
                    steps, values = lines.get(address, ((), ()))
                    one = style.look(runs, run)
                    axis.plot(steps, values, color=one["color"], linestyle=one["linestyle"])
                held_out = curves(inputs.cells, f"eval_{metric}")
                for run, address in zip(runs, addresses, strict=True):
                    if address in held_out:
                        color = style.look(runs, run)["color"]
                        axis.plot(*held_out[address], color=color, linewidth=0.8, **_EVALUATED)
                axis.set(xlabel="step", ylabel=metric.replace("_", " "))
            style.legend(figure, style.line_handles(runs), columns=self.columns)
            return style.save(figure, into, self.kind)
