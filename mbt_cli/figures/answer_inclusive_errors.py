"""Answer-inclusive errors: right, wrong though the trace had it, and wrong, of all predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mbt_cli.core.figure_rows import METHOD, MODEL, accuracy_of, panels
from mbt_cli.core.table_rows import present
from mbt_cli.core.tables import ReportInputs
from mbt_cli.figures import style
from mbt_cli.interfaces import Figure

_ERRORS = ("answer_inclusive_errors", "answer_inclusive_errors_words")
_PARTS = ("right", "wrong, but the trace reaches the answer", "wrong")


class AnswerInclusiveErrorsFigure(Figure):
    """One stacked bar a cell, one panel a benchmark."""

    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"
    columns: style.Columns = 2
    """Width in columns of a paper."""

    def draw(self, inputs: ReportInputs, into: Path) -> Sequence[Path]:
        errors = next(iter(present(inputs, _ERRORS)), _ERRORS[0])
        accuracy = accuracy_of(inputs)
        found = panels(inputs, (accuracy, errors))
        if not found:
            return ()
        with style.drawing(len(found), self.columns, across=2) as (figure, axes):
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
            style.legend(figure, _handles(), columns=self.columns)
            return style.save(figure, into, self.kind)


def _bar(axis: Any, place: int, right: float, reached: float) -> None:
    start = 0.0
    for part, share in zip(_PARTS, (right, reached, max(0.0, 1 - right - reached)), strict=True):
        axis.barh(place, 100 * share, left=start, height=0.75, edgecolor="white", **_look(part))
        start += 100 * share


def _look(part: str) -> dict[str, Any]:
    one = style.look(_PARTS, part)
    return {"facecolor": one["color"], "hatch": one["hatch"], "linewidth": 0}


def _handles() -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(edgecolor="white", label=part, **_look(part)) for part in _PARTS]
