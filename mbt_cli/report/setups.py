"""The table of setups: how far two ways to measure the same thing agree on the same questions."""

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
from pydantic import Field

from mbt_cli.core.measures import JUDGED_BY
from mbt_cli.core.tables import STAGE, Column, ReportInputs, TableData
from mbt_cli.interfaces import Table
from mbt_cli.report.metrics import display_title, missing_notes
from mbt_cli.report.notes import ADDRESS
from mbt_cli.scores.relations import clustered_correlation, clustered_mean, spearman

_QUESTION, _CELL, _SETUP = "question_id", "cell", "setup"
_LEAST_CELLS = 3


class Setups(Table):
    """Agreement of every two setups on a metric: the same replies by two judges or elicitations."""

    kind: Literal["setups"] = "setups"
    shows_metrics: ClassVar[bool] = False
    metrics: tuple[str, ...] = Field(default=("brier", "belief_accuracy"), min_length=1)
    """Metrics to compare, each with itself. Where several judge models gave verdicts, those of each
    are a setup."""
    axis: str = STAGE
    """What tells setups apart: `stage`, for score stages that read other verdicts on the same
    rollouts; or an axis of the scores, such as `prompt`, `program` or `system_prompt`."""

    def reads(self) -> Collection[str]:
        return self.metrics

    def build(self, inputs: ReportInputs) -> TableData:
        lines = [line for metric in self.metrics for line in self._lines(inputs, metric)]
        what = f"Setups differ in `{self.axis}`" if self.axis in (*inputs.axes, STAGE) else (
            f"The scores have no axis `{self.axis}`"
        )  # fmt: skip
        notes = [
            f"{what} or the judge model, and are compared on the questions of which both have a "
            "value, in cells that are equal otherwise. Rank correlation: of ranks within cells; "
            "difference: the second minus the first, and its mean absolute value over questions; "
            "intervals are clustered by question. Cells: Spearman's correlation of the cells' "
            f"means, from {_LEAST_CELLS} cells on."
        ]
        if not lines:
            notes.append("No metric was measured by two setups on the same questions.")
        return TableData(
            name=f"{self.kind}_{self.axis}",
            title="Agreement of setups",
            columns=[
                Column("metric", "metric", kind="label"),
                Column("one", "setup", kind="label"),
                Column("other", "beside", kind="label"),
                Column("rank", "rank correlation", unit="correlation", decimals=2),
                Column("difference", "mean difference", decimals=4),
                Column("distance", "mean absolute difference", decimals=4),
                Column("questions", "pairs", decimals=0),
                Column("cells", "rank correlation of cells", unit="correlation", decimals=2),
                Column("cell_count", "cells", decimals=0),
            ],
            rows=pl.DataFrame(lines, schema=_SCHEMA),
            notes=[*notes, *missing_notes(inputs)],
        )

    def _lines(self, inputs: ReportInputs, metric: str) -> Iterator[Mapping[str, Any]]:
        values = self._values(inputs, metric)
        names = values[_SETUP].unique(maintain_order=True).sort()
        for one, other in combinations(names, 2):
            both = values.filter(pl.col(_SETUP) == one).join(
                values.filter(pl.col(_SETUP) == other), on=[_CELL, _QUESTION], suffix="_other"
            )
            if both.height:
                shown = {"metric": display_title(metric, inputs), "one": one, "other": other}
                yield {**shown, **_agreement(both)}

    def _values(self, inputs: ReportInputs, metric: str) -> pl.DataFrame:
        """`setup`, `cell`, `question_id` and `value`: one row per question of a cell."""
        schema = dict.fromkeys((_SETUP, _CELL, _QUESTION), pl.String())
        if ADDRESS not in inputs.scores.collect_schema().names():
            return pl.DataFrame(schema={**schema, "value": pl.Float64()})
        is_metric = (pl.col("metric") == metric) | pl.col("metric").str.starts_with(
            f"{metric}{JUDGED_BY}"
        )
        found = inputs.scores.filter(is_metric, pl.col("value").is_finite())
        by_question = found.select(ADDRESS, _QUESTION, "metric", "value").collect()
        named = by_question.join(self._cells(inputs), on=ADDRESS, how="inner")
        model = pl.col("metric").str.strip_prefix(metric).str.strip_prefix(JUDGED_BY)
        parts = [pl.col(_SETUP).replace("", None), pl.when(model != "").then(model)]
        setup = pl.concat_str(parts, separator=" by ", ignore_nulls=True)
        return named.select(setup, _CELL, pl.concat_str("of", _QUESTION).alias(_QUESTION), "value")

    def _cells(self, inputs: ReportInputs) -> pl.DataFrame:
        """Address to its setup, to what else it is about, and to the benchmark of its questions."""
        axes = [axis for axis in inputs.axes if axis not in (STAGE, self.axis)]
        named = [pl.concat_str(pl.lit(f"{axis}="), pl.col(axis).fill_null("")) for axis in axes]
        stage = pl.col(ADDRESS).str.split("/").list.first()
        own = pl.col(self.axis) if self.axis in inputs.axes else pl.lit("")
        benchmark = pl.col("benchmark") if "benchmark" in inputs.axes else pl.lit("")
        return inputs.summary.select(
            ADDRESS,
            (stage if self.axis == STAGE else own.fill_null("")).alias(_SETUP),
            (pl.concat_str(named, separator="/") if named else pl.lit("")).alias(_CELL),
            pl.concat_str(benchmark.fill_null(""), pl.lit("/")).alias("of"),
        ).unique(maintain_order=True)


_SCHEMA = pl.Schema(
    {
        **dict.fromkeys(("metric", "one", "other"), pl.String()),
        **dict.fromkeys(
            (
                *(f"{key}{end}" for key in ("rank", "difference") for end in ("", "_low", "_high")),
                *("distance", "cells", "cells_low", "cells_high"),
            ),
            pl.Float64(),
        ),
        **dict.fromkeys(("questions", "cell_count"), pl.Int64()),
    }
)


def _agreement(both: pl.DataFrame) -> Mapping[str, Any]:
    """The numbers of a row of the table, from `cell`, `question_id`, `value`, `value_other`."""
    sides = ("value", "value_other")
    rank = [(pl.col(s).rank("average") / pl.col(s).count()).over(_CELL) for s in sides]
    share = both.select((one - one.mean().over(_CELL)) for one in rank)
    clusters = (both[_QUESTION].rank("dense").cast(pl.Int64) - 1).to_numpy()
    moved = (both["value_other"] - both["value"]).to_numpy()
    means = both.group_by(_CELL, maintain_order=True).agg(pl.col(s).mean() for s in sides)
    cells = None
    if means.height >= _LEAST_CELLS:
        cells = spearman(means["value"].to_numpy(), means["value_other"].to_numpy())
    found: dict[str, Any] = {
        "distance": float(np.abs(moved).mean()),
        "questions": both.height,
        "cell_count": means.height,
    }
    related = clustered_correlation(
        share["value"].to_numpy(), share["value_other"].to_numpy(), clusters
    )
    for key, one in (
        ("rank", related),
        ("difference", clustered_mean(moved, clusters)),
        ("cells", cells),
    ):
        if one is not None:
            around = one.interval
            found |= {key: one.value}
            if around is not None:
                found |= {f"{key}_low": around.low, f"{key}_high": around.high}
    return found
