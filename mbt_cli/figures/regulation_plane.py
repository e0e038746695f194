"""Regulation plane: how soon traces arrive against how much of them is redundant."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mbt_cli.core.figure_rows import METHOD, MODEL, axis_title, names, panels
from mbt_cli.core.tables import ReportInputs
from mbt_cli.figures import marks, style
from mbt_cli.interfaces import Figure

_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)


class RegulationPlane(Figure):
    """One point a cell; grey lines join places of equal regulation, better towards lower left."""

    kind: Literal["regulation_plane"] = "regulation_plane"
    length_aware: bool = False
    """Whether arrival and redundancy are taken against the baseline's length."""
    columns: style.Columns = 1
    """Width in columns of a paper."""

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
                marks.points(axis, panel, metrics, methods, models)
                axis.set(title=panel.title, xlim=(0, 1), ylim=(0, 1))
                axis.set(xlabel=axis_title(inputs, metrics[0]))
                axis.set(ylabel=axis_title(inputs, metrics[1]))
                axis.grid(visible=False)
            style.legend(figure, marks.point_handles(methods, models), columns=self.columns)
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
