"""Response lengths: how long the replies of each method are, as shares up to a length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.figure_rows import METHOD, names, panels
from mbt_cli.core.tables import ReportInputs
from mbt_cli.figures import marks, style
from mbt_cli.interfaces import Figure


class ResponseLengths(Figure):
    """Share of questions whose mean reply has at most so many tokens, one line a method."""

    kind: Literal["response_lengths"] = "response_lengths"
    columns: style.Columns = 2
    """Width in columns of a paper."""

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
            style.legend(figure, marks.line_handles(methods), columns=self.columns)
            return style.save(figure, into, self.kind)


def _lengths(inputs: ReportInputs) -> dict[str, npt.NDArray[np.float64]]:
    """Address to the mean tokens of each question, those of length 0 left out: the axis is log."""
    known = (pl.col("metric") == "tokens") & (pl.col("value") > 0)
    frame = inputs.scores.filter(known).select("address", "value").collect()
    parts = frame.partition_by("address", as_dict=True)
    return {str(key[0]): part["value"].to_numpy() for key, part in parts.items()}
