"""Phase profile: how many traces show each of the five phases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mbt_cli.core.figure_rows import METHOD, names, panels
from mbt_cli.core.metric_titles import PHASES, shown
from mbt_cli.core.tables import ReportInputs
from mbt_cli.figures import marks, style
from mbt_cli.interfaces import Figure


class PhaseProfile(Figure):
    """One line a method over the five phases, one panel a benchmark and model."""

    kind: Literal["phase_profile"] = "phase_profile"
    columns: style.Columns = 2
    """Width in columns of a paper."""

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
                titles = [shown(phase).title for phase in PHASES]
                axis.set_xticks(range(len(PHASES)), titles, rotation=35, ha="right")
                axis.set(title=panel.title, ylabel="traces with the phase (%)", ylim=(0, 100))
            style.legend(figure, marks.line_handles(methods, markers=True), columns=self.columns)
            return style.save(figure, into, self.kind)
