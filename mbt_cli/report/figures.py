"""The figures of a report. `mbt help` prints the first line of each docstring."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.addresses import STEP, axes_of, short_names
from mbt_cli.core.judge_scales import VERIFIED
from mbt_cli.core.lineage_notes import curves, curves_of_sources
from mbt_cli.core.tables import ReportInputs
from mbt_cli.interfaces import Figure
from mbt_cli.report import figure_style as style
from mbt_cli.report.figure_style import (
    ACCURACIES,
    METHOD,
    MODEL,
    accuracy_of,
    axis_title,
    names,
    panels,
    scale,
)
from mbt_cli.report.metrics import (
    PHASES,
    display_here,
    display_of,
    harness_metrics,
    present,
)


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

    def also_shows(self) -> Collection[str]:
        return ACCURACIES if self.accuracy is None else (self.accuracy,)

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

    def also_shows(self) -> Collection[str]:
        return ACCURACIES

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


_AT_K = re.compile(r"(?:(?P<of>\w+)_)?pass@(?P<k>\d+)(?P<judge>:.+)?")
_USUAL = ("verified", "judge_accuracy", "math_match", "")


class PassAtKCurves(Figure):
    """The chance that one of k samples is right over k, one line per cell with 95 % intervals.

    One panel per benchmark. The axis of k is logarithmic.
    """

    title: ClassVar[str] = "Right answers among k samples"
    kind: Literal["pass_at_k_curves"] = "pass_at_k_curves"
    of: str | None = None
    """The measure that says what is right, such as `verified`; by default the first of `verified`,
    `judge_accuracy`, `math_match` and `exact_match` that has values."""
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return ("pass_at_k",)

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        curve = self._curve(inputs)
        if not curve:
            return ()
        least, *more = curve.values()
        found = panels(inputs, (least,), optional=more)
        methods, models = names(found, METHOD), names(found, MODEL)
        lines = [f"{model} {method}".strip() for model in models for method in methods]
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for row in panel.rows.iter_rows(named=True):
                    one = style.look(lines, f"{row[MODEL]} {row[METHOD]}".strip())
                    ks = [k for k, metric in curve.items() if row[metric] is not None]
                    ends = {
                        end: [100 * row[f"{curve[k]}{end}"] for k in ks]
                        for end in ("", "_low", "_high")
                        if all(row[f"{curve[k]}{end}"] is not None for k in ks)
                    }
                    color = one["color"]
                    axis.plot(
                        ks, ends[""], color=color, linestyle=one["linestyle"],
                        marker=one["marker"], markersize=3,
                    )  # fmt: skip
                    if "_low" in ends and "_high" in ends:
                        between = ends["_low"], ends["_high"]
                        axis.fill_between(ks, *between, color=color, alpha=0.15, linewidth=0)
                axis.set_xscale("log", base=2)
                axis.xaxis.set_major_formatter("{x:g}")
                axis.set(title=panel.title, xlabel="k", ylabel="pass@k (%)")
            handles = style.line_handles(lines, markers=True)
            style.legend(figure, handles, columns=self.columns)
            return style.save(figure, into, self.kind)

    def _curve(self, inputs: ReportInputs) -> dict[int, str]:
        """The metric of each k, ascending, of the first measure that has some."""
        found: dict[tuple[str, str], dict[int, str]] = {}
        for metric in inputs.summary["metric"].unique().sort():
            if match := _AT_K.fullmatch(metric):
                measured = match["of"] or "", match["judge"] or ""
                found.setdefault(measured, {})[int(match["k"])] = metric
        own = "" if self.of == "exact_match" else self.of
        for of in _USUAL if own is None else (own,):
            for (measure, _), metrics in found.items():
                if measure == of:
                    return dict(sorted(metrics.items()))
        return {}


class ScoreCurves(Figure):
    """A metric over the steps of a training, one line per run with 95 % intervals.

    One panel per metric and benchmark. Cells that are not checkpoints of a step, such as those of
    the model before its training, are dashed lines across.
    """

    title: ClassVar[str] = "Scores while training"
    across: ClassVar[str | None] = STEP
    across_hint: ClassVar[str] = (
        'score a rollout with `checkpoints = { stage = "TRAINING", where = { step = "all" } }`'
    )
    kind: Literal["score_curves"] = "score_curves"
    metric: str | list[str] | None = None
    """Metrics, such as `verified` or `pass_at_8`; by default the first of `verified`,
    `judge_accuracy`, `math_match`, `exact_match` and the numbers of harnesses that has values."""
    columns: style.Columns = 2
    """Width in columns of a two-column paper."""

    def reads(self) -> Collection[str]:
        return () if self.metric is None else self._metrics(())

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        if STEP not in inputs.axes:
            return ()
        usual = [*present(inputs, (VERIFIED, *style.ACCURACIES)), *harness_metrics(inputs)]
        metrics = self._metrics(usual)
        found = [(m, panel) for m in metrics for panel in panels(inputs, (m,), across=STEP)]
        rows = [
            panel.rows for _, panel in found if panel.rows[STEP].null_count() < panel.rows.height
        ]
        if not rows:
            return ()
        lines = list(dict.fromkeys(line for own in rows for line in _lines_of(own)))
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, (metric, panel) in zip(axes, found, strict=True):
                for name in lines:
                    own = panel.rows.filter(pl.Series(_lines_of(panel.rows)) == name)
                    factor = 100.0 if display_here(inputs, metric).unit == "percent" else 1.0
                    _draw_line(axis, own, metric, style.look(lines, name), factor)
                axis.set(title=panel.title, xlabel="step", ylabel=style.axis_title(inputs, metric))
            handles = style.line_handles(lines, markers=True)
            style.legend(figure, handles, columns=self.columns)
            return style.save(figure, into, self.kind)

    def _metrics(self, usual: Sequence[str]) -> Sequence[str]:
        if self.metric is None:
            return usual[:1]
        return [self.metric] if isinstance(self.metric, str) else self.metric


def _lines_of(rows: pl.DataFrame) -> list[str]:
    pairs = zip(rows[MODEL], rows[METHOD], strict=True)
    return [f"{model} {method}".strip() for model, method in pairs]


def _draw_line(
    axis: Any, rows: pl.DataFrame, metric: str, look: Mapping[str, Any], factor: float
) -> None:
    """The points of one run by their steps, or a line across where there are none."""
    color = look["color"]
    low, high = f"{metric}_low", f"{metric}_high"
    steps = rows.filter(pl.col(STEP).is_not_null()).sort(pl.col(STEP).cast(pl.Int64))
    if not steps.height:
        for value in rows[metric]:
            axis.axhline(factor * value, color=color, linestyle="--", linewidth=1)
        return
    at = steps[STEP].cast(pl.Int64).to_list()
    axis.plot(
        at, (factor * steps[metric]).to_list(),
        color=color, linestyle=look["linestyle"], marker=look["marker"], markersize=3,
    )  # fmt: skip
    if not steps[low].null_count() and not steps[high].null_count():
        ends = [(factor * steps[end]).to_list() for end in (low, high)]
        axis.fill_between(at, *ends, color=color, alpha=0.15, linewidth=0)


class TrainingCurves(Figure):
    """One line per trained cell over its steps, one panel per logged value.

    Held-out values of the same name are points; without any, the steps whose checkpoints are scored
    are marked. If the questions of a training are of several benchmarks, each of them has a line
    beside the mean: in the same panel if one cell is shown, in panels of their own if there are
    more.
    """

    title: ClassVar[str] = "Training"
    kind: Literal["training_curves"] = "training_curves"
    metric: str | list[str] = "loss"
    """Names of logged values, such as `loss`; for reinforcement learning also `reward`,
    `reward_NAME`, `reward_std`, `zero_std_groups`, `entropy`, `kl`, `clip_ratio`, `truncated` and
    `completion_length`, and of a mixture `reward:BENCHMARK` and others."""
    by_source: bool = True
    """Whether a value also has a line for each benchmark of a mixture."""
    columns: style.Columns = 1
    """Width in columns of a two-column paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        metrics = [self.metric] if isinstance(self.metric, str) else self.metric
        drawn = [self._drawn(inputs, metric) for metric in metrics]
        found = [panel for panels in drawn for panel in panels if panel.lines]
        if not found:
            return ()
        every = {address: None for panel in found for address, _ in panel.lines}
        addresses = [cell for cell in inputs.cells["address"] if cell in every]
        runs = dict(zip(addresses, short_names(addresses), strict=True))
        labels = list(dict.fromkeys(p.label(line, runs) for p in found for line in p.lines))
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                for line, (steps, values) in panel.lines.items():
                    one = style.look(labels, panel.label(line, runs))
                    axis.plot(steps, values, color=one["color"], linestyle=one["linestyle"])
                for line, (steps, values) in panel.points.items():
                    color = style.look(labels, panel.label(line, runs))["color"]
                    width = 0.0 if panel.is_marked else 0.8
                    axis.plot(steps, values, color=color, linewidth=width, **_EVALUATED)
                axis.set(xlabel="step", ylabel=panel.title)
            handles = style.line_handles(labels)
            style.legend(figure, handles, columns=self.columns)
            return style.save(figure, into, self.kind)

    def _drawn(self, inputs: ReportInputs, metric: str) -> list["_Curves"]:
        """The panels of a metric: one, or one more for each benchmark if several cells have it."""
        title = metric.replace("_", " ")
        whole = curves(inputs.cells, metric)
        held_out = curves(inputs.cells, f"eval_{metric}")
        found = held_out or _at_scored_steps(inputs, whole)
        points = {(cell, ""): xy for cell, xy in found.items() if cell in whole}
        sources = curves_of_sources(inputs.cells, metric) if self.by_source else {}
        lines = {(cell, ""): xy for cell, xy in whole.items()}
        if len(whole) == 1:
            for source, of_cells in sources.items():
                lines |= {(cell, source): xy for cell, xy in of_cells.items()}
            return [_Curves(title, lines, points, is_marked=not held_out)]
        more = [
            _Curves(f"{title}: {source}", {(cell, ""): xy for cell, xy in of_cells.items()}, {})
            for source, of_cells in sources.items()
        ]
        return [_Curves(title, lines, points, is_marked=not held_out), *more]


_XY = tuple[list[float], list[float]]


def _at_scored_steps(inputs: ReportInputs, lines: Mapping[str, _XY]) -> dict[str, _XY]:
    """Address of a training to the places on its line at the steps whose checkpoints are scored."""
    if STEP not in inputs.axes:
        return {}
    scored = inputs.summary.filter(pl.col(STEP).is_not_null()).select(inputs.axes).unique()
    published = dict(inputs.cells.select("address", "published").iter_rows())
    found = {}
    for address, (steps, values) in lines.items():
        axes = {axis: name for axis, name in axes_of(address).items() if axis in inputs.axes}
        own = scored.filter(**axes)[STEP].unique().to_list()
        at = sorted({int(step) for step in own} & set(published[address] or ()))
        if at:
            found[address] = ([float(step) for step in at], np.interp(at, steps, values).tolist())
    return found


_Line = tuple[str, str]
"""Address of a trained cell, and a benchmark; empty for the mean over all."""


@dataclass(frozen=True, slots=True)
class _Curves:
    """A panel of `TrainingCurves`.

    Args:
        title: Its logged value.
        lines: Steps and values of what is logged at every step.
        points: Steps and values of evaluations: of held-out questions while the model trains, or
            the places on the line at which checkpoints are scored.
        is_marked: Whether they are such places.
    """

    title: str
    lines: Mapping[_Line, _XY]
    points: Mapping[_Line, _XY]
    is_marked: bool = False

    @staticmethod
    def label(line: _Line, runs: Mapping[str, str]) -> str:
        """The line's name in the legend: the run if there are several, else the benchmark."""
        address, source = line
        if len(runs) > 1:
            return " ".join(part for part in (runs[address], source) if part)
        return source or runs[address]
