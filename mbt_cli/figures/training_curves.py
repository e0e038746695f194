"""Training curves: the loss of every run over its steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mbt_cli.core.addresses import short_names
from mbt_cli.core.cell_notes import curves
from mbt_cli.core.tables import ReportInputs
from mbt_cli.figures import marks, style
from mbt_cli.interfaces import Figure


class TrainingCurves(Figure):
    """One line a trained cell: what its run logged, step by step."""

    kind: Literal["training_curves"] = "training_curves"
    metric: str = "loss"
    """What is drawn: a name that the run logged, such as `loss` or `reward`."""
    columns: style.Columns = 1
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        found = curves(inputs.cells, self.metric)
        if not found:
            return ()
        runs = short_names(list(found))
        with style.drawing(1, self.columns) as (figure, (axis,)):
            for run, (steps, values) in zip(runs, found.values(), strict=True):
                one = style.look(runs, run)
                axis.plot(steps, values, color=one["color"], linestyle=one["linestyle"])
            axis.set(xlabel="step", ylabel=self.metric.replace("_", " "))
            style.legend(figure, marks.line_handles(runs), columns=self.columns)
            return style.save(figure, into, self.kind)
