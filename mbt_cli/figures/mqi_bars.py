"""MQI bars: the index of every method, a group for each model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mbt_cli.core.figure_rows import METHOD, axis_title, names, panels
from mbt_cli.core.tables import ReportInputs
from mbt_cli.figures import marks, style
from mbt_cli.interfaces import Figure


class MQIBars(Figure):
    """One bar a cell with its 95 % interval, one panel a benchmark."""

    kind: Literal["mqi_bars"] = "mqi_bars"
    metric: Literal["mqi", "mqi_of_means", "mqi_level"] = "mqi"
    """Mean over samples, the method-level form, or the judge's level alone."""
    columns: style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = panels(inputs, (self.metric,))
        if not found:
            return ()
        methods = names(found, METHOD)
        with style.drawing(len(found), self.columns, across=2) as (figure, axes):
            for axis, panel in zip(axes, found, strict=True):
                marks.bars(axis, panel, self.metric, methods)
                axis.set(title=panel.title, ylabel=axis_title(inputs, self.metric))
            style.legend(figure, marks.bar_handles(methods), columns=self.columns)
            return style.save(figure, into, self.kind)
