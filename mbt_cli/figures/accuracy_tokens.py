"""Accuracy against tokens: what a method gains for what it costs, with the Pareto front."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mbt_cli.core.figure_rows import (
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
from mbt_cli.core.tables import ReportInputs
from mbt_cli.figures import marks, style
from mbt_cli.interfaces import Figure


class AccuracyTokens(Figure):
    """One point a cell: mean tokens and accuracy with 95 % intervals, one panel a benchmark.

    The line joins the points that no other one beats on both.
    """

    kind: Literal["accuracy_tokens"] = "accuracy_tokens"
    accuracy: str | None = None
    """Metric on the upright axis; left out, the judge's accuracy, else exact match."""
    columns: style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        accuracy = self.accuracy or accuracy_of(inputs)
        found = panels(inputs, ("tokens", accuracy))
        if not found:
            return ()
        methods, models = names(found, METHOD), names(found, MODEL)
        with style.drawing(len(found), self.columns) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                marks.points(axis, panel, ("tokens", accuracy), methods, models)
                _front(axis, panel, accuracy)
                axis.set(
                    title=panel.title,
                    xlabel=axis_title(inputs, "tokens"),
                    ylabel=axis_title(inputs, accuracy),
                )
            style.legend(figure, marks.point_handles(methods, models), columns=self.columns)
            return style.save(figure, into, self.kind)


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
