"""Tables of how metrics are related: to each other, and to what is known of the policies."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
from pydantic import Field

from mbt_cli.core.number_text import number_text, significant_decimals
from mbt_cli.core.tables import STAGE, Column, ReportInputs, TableData
from mbt_cli.interfaces import Table
from mbt_cli.report.metrics import display_title, metric_column, missing_notes, present
from mbt_cli.report.notes import ADDRESS
from mbt_cli.scores.relations import (
    Correlation,
    Regression,
    clustered_correlation,
    least_squares,
    spearman,
)

_METRICS = (
    "brier",
    "log_loss",
    "belief_accuracy",
    "calibration_ece",
    "martingale",
    "sycophancy_shift",
    "tokens",
)
_QUESTION = "question_id"
_CELL = "cell"


class Relations(Table):
    """Rank correlation of every two metrics, over cells or over questions, with intervals."""

    kind: Literal["relations"] = "relations"
    shows_metrics: ClassVar[bool] = False
    metrics: tuple[str, ...] = Field(default=_METRICS, min_length=2)
    """Metrics to relate, in this order; one that no cell has is left out."""
    over: Literal["cells", "questions"] = "cells"
    """`cells`: whether methods that are good at one are good at the other. `questions`: whether
    that holds of the questions of a cell, by ranks within the cell."""

    def reads(self) -> Collection[str]:
        return self.metrics

    def build(self, inputs: ReportInputs) -> TableData:
        metrics = present(inputs, self.metrics)
        if self.over == "cells":
            values = _of_cells(inputs, metrics)
        else:
            values = _ranked_in_cells(_of_questions(inputs, metrics), metrics)
        metrics = [metric for metric in metrics if metric in values.columns]
        rows = {metric: dict[str, Any]() for metric in metrics}
        for one, other in combinations(metrics, 2):
            found = self._related(values, one, other)
            rows[one] |= _with_interval(other, found)
            rows[other] |= _with_interval(one, found)
        what = (
            "Spearman's rank correlation over cells with both metrics (n: their number); intervals "
            "by Bonett and Wright. Cells of one model are not independent."
            if self.over == "cells"
            else "Correlation of ranks within cells over all cells (n: questions), so that "
            "differences between cells count for nothing; intervals are clustered by question."
        )
        schema = {"metric": pl.String()} | {
            f"{metric}{end}": pl.Int64() if end == "_n" else pl.Float64()
            for metric in metrics
            for end in ("", "_low", "_high", "_n")
        }
        lines = [
            {**dict.fromkeys(schema), "metric": display_title(metric, inputs), **of_metric}
            for metric, of_metric in rows.items()
        ]
        return TableData(
            name=self.kind if self.over == "cells" else f"{self.kind}_questions",
            title=f"Rank correlations over {self.over}",
            columns=[
                Column("metric", "metric", kind="label"),
                *(
                    Column(metric, display_title(metric, inputs), unit="correlation", decimals=2)
                    for metric in metrics
                ),
            ],
            rows=pl.DataFrame(lines, schema=schema),
            notes=[what if len(metrics) > 1 else _TOO_FEW, *missing_notes(inputs)],
        )

    def _related(self, values: pl.DataFrame, one: str, other: str) -> Correlation | None:
        both = values.drop_nulls([one, other])
        x, y = both[one].to_numpy(), both[other].to_numpy()
        if self.over == "cells":
            return spearman(x, y)
        return clustered_correlation(x, y, _numbered(both[_QUESTION]))


_TOO_FEW = "Fewer than two of the metrics have values."


def _with_interval(metric: str, found: Correlation | None) -> Mapping[str, Any]:
    if found is None:
        return {}
    around = found.interval
    ends = {
        f"{metric}_low": None if around is None else around.low,
        f"{metric}_high": None if around is None else around.high,
    }
    return {metric: found.value, **ends, f"{metric}_n": found.n}


def _numbered(names: pl.Series) -> np.ndarray[Any, np.dtype[np.int64]]:
    return names.rank("dense").cast(pl.Int64).to_numpy() - 1


def _cells(inputs: ReportInputs) -> pl.DataFrame:
    """Address to what it is about: cells of several score stages over the same rollouts are one."""
    axes = [axis for axis in inputs.axes if axis != STAGE]
    named = [pl.concat_str(pl.lit(f"{axis}="), pl.col(axis).fill_null("")) for axis in axes]
    cell = pl.concat_str(named, separator="/") if named else pl.lit("")
    benchmark = pl.col("benchmark") if "benchmark" in axes else pl.lit("")
    return inputs.summary.select(
        ADDRESS, cell.alias(_CELL), benchmark.fill_null("").alias("benchmark")
    ).unique(maintain_order=True)


def _of_cells(inputs: ReportInputs, metrics: Sequence[str]) -> pl.DataFrame:
    """One row per cell, a column per metric that has values."""
    whole = inputs.summary.filter(pl.col("by").is_null(), pl.col("metric").is_in(list(metrics)))
    named = whole.join(_cells(inputs), on=ADDRESS, how="left", suffix="_of")
    return _wide(named.select(_CELL, "metric", "value"), [_CELL])


def _of_questions(inputs: ReportInputs, metrics: Sequence[str]) -> pl.DataFrame:
    """One row per cell and question, with a column per metric that has a value for questions."""
    if ADDRESS not in inputs.scores.collect_schema().names():
        return pl.DataFrame(schema={_CELL: pl.String(), _QUESTION: pl.String()})
    wanted = inputs.scores.filter(pl.col("metric").is_in(list(metrics)))
    found = wanted.select(ADDRESS, _QUESTION, "metric", "value").collect()
    named = found.join(_cells(inputs), on=ADDRESS, how="left")
    # questions of two benchmarks may have the same id
    question = pl.concat_str("benchmark", _QUESTION, separator="/").alias(_QUESTION)
    return _wide(named.select(_CELL, question, "metric", "value"), [_CELL, _QUESTION])


def _wide(values: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    known = values.drop_nulls("value").filter(pl.col("value").is_finite())
    if known.is_empty():
        return known.select(keys)
    return known.pivot(on="metric", index=list(keys), values="value", aggregate_function="mean")


def _ranked_in_cells(values: pl.DataFrame, metrics: Sequence[str]) -> pl.DataFrame:
    """Ranks within each cell as shares of it, with the mean 0."""
    ranks = [
        ((pl.col(metric).rank("average") - 0.5) / pl.col(metric).count() - 0.5).over(_CELL)
        for metric in metrics
        if metric in values.columns
    ]
    return values.with_columns(ranks)


class RegressionTable(Table):
    """Least squares of a metric of questions on others, with errors clustered by question."""

    kind: Literal["regression"] = "regression"
    shows_metrics: ClassVar[bool] = False
    metric: str = "brier"
    """The outcome: a metric that has a value for each question."""
    on: tuple[str, ...] = Field(default=("tokens",), min_length=1)
    """Metrics that it is regressed on together, such as lengths and other features of a trace."""
    within: bool = True
    """Whether each cell has an intercept of its own, so that only differences between the questions
    of a cell count."""

    def reads(self) -> Collection[str]:
        return (self.metric, *self.on)

    def build(self, inputs: ReportInputs) -> TableData:
        values = _of_questions(inputs, (self.metric, *self.on))
        missing = [metric for metric in self.reads() if metric not in values.columns]
        found, spread = None, dict[str, float]()
        if not missing:
            rows = values.drop_nulls(list(self.reads()))
            columns = rows.select(self.on).to_numpy().astype(np.float64)
            cells = _numbered(rows[_CELL]) if self.within else None
            clusters = _numbered(rows[_QUESTION])
            outcome = rows[self.metric].to_numpy()
            found = least_squares(outcome, columns, clusters, cells) if rows.height else None
            spread = dict(zip(self.on, columns.std(axis=0).tolist(), strict=True))
        lines = [] if found is None else self._lines(inputs, found, spread)
        title = display_title(self.metric, inputs)
        least = min((abs(line["effect"]) for line in lines if line["effect"]), default=1.0)
        decimals = min(8, significant_decimals(least, 3))
        return TableData(
            name=f"{self.kind}_{self.metric}",
            title=f"{title} of questions by other metrics",
            columns=[
                Column("on", "metric", kind="label"),
                Column("effect", "coefficient", decimals=decimals),
                Column("error", "standard error", decimals=decimals),
                Column("per_sd", "per standard deviation", decimals=4),
                Column("p", "p", decimals=4),
            ],
            rows=pl.DataFrame(lines, schema=_REGRESSED),
            notes=[*self._notes(inputs, found, missing), *missing_notes(inputs)],
        )

    def _lines(
        self, inputs: ReportInputs, found: Regression, spread: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        width = found.width
        return [
            {
                "on": display_title(metric, inputs),
                "effect": effect,
                "effect_low": effect - width * error,
                "effect_high": effect + width * error,
                "error": error,
                "per_sd": effect * spread[metric],
                "p": p,
            }
            for metric, effect, error, p in zip(
                self.on,
                found.coefficients.tolist(),
                found.errors.tolist(),
                found.p.tolist(),
                strict=True,
            )
        ]

    def _notes(
        self, inputs: ReportInputs, found: Regression | None, missing: Sequence[str]
    ) -> list[str]:
        if missing:
            return [f"No question has a value of {', '.join(missing)}."]
        if found is None:
            return ["Too few questions, or metrics that depend on each other: no coefficients."]
        cells = "with an intercept for each cell" if self.within else "with one intercept"
        explained = number_text(found.r_squared, unit="percent")
        return [
            f"Least squares {cells}, errors clustered by question (CR1; Student's t): "
            f"{found.rows} rows, {found.clusters} questions, {explained} % of the variance"
            f"{' within cells' if self.within else ''} explained. An association, not an effect."
        ]


_REGRESSED = pl.Schema(
    {
        "on": pl.String(),
        **dict.fromkeys(
            ("effect", "effect_low", "effect_high", "error", "per_sd", "p"), pl.Float64()
        ),
    }
)


class Policies(Table):
    """One row per model: its metrics, the mean over its cells, beside a published number."""

    kind: Literal["policies"] = "policies"
    shows_metrics: ClassVar[bool] = False
    metrics: tuple[str, ...] = Field(default=_METRICS, min_length=1)
    """Metrics to show, in this order; one that no cell has is left out."""
    published: dict[str, float] = Field(default_factory=dict)
    """Model to a published number, such as an Elo or a size; models without one are left out of
    the correlation."""
    published_title: str = "published"
    """Heading of the published numbers."""

    def reads(self) -> Collection[str]:
        return self.metrics

    def build(self, inputs: ReportInputs) -> TableData:
        metrics = present(inputs, self.metrics)
        rows = policies(inputs, metrics, self.published)
        columns = [metric_column(inputs, metric) for metric in metrics]
        notes = ["Each number is the mean over the cells of its model; each cell counts once."]
        if self.published:
            notes += [
                f"{column.title} and {self.published_title}: {correlation_text(found)}."
                for column in columns
                if (found := with_published(rows, column.key)) is not None
            ]
        decimals = max(
            (significant_decimals(value, 4) for value in self.published.values()), default=0
        )
        shown = [Column("published", self.published_title, decimals=decimals)]
        return TableData(
            name=self.kind,
            title="Policies",
            columns=[
                Column("model", "model", kind="label"),
                *(shown if self.published else []),
                *columns,
                Column("cells", "cells", decimals=0),
            ],
            rows=rows,
            notes=[*notes, *missing_notes(inputs)],
        )


def policies(
    inputs: ReportInputs, metrics: Sequence[str], published: Mapping[str, float]
) -> pl.DataFrame:
    """One row per model: `published`, the mean of each metric over its cells, and their number.

    Those with a published number come first, the highest of them at the top.
    """
    schema = {"model": pl.String(), "published": pl.Float64()}
    if "model" not in inputs.axes:
        more = {metric: pl.Float64() for metric in metrics}
        return pl.DataFrame(schema={**schema, **more, "cells": pl.Int64()})
    whole = inputs.summary.filter(pl.col("by").is_null(), pl.col("metric").is_in(list(metrics)))
    is_metric = {metric: pl.col("metric") == metric for metric in metrics}
    means = {metric: pl.col("value").filter(of).mean() for metric, of in is_metric.items()}
    found = whole.group_by("model", maintain_order=True).agg(
        **means, cells=pl.col(ADDRESS).n_unique().cast(pl.Int64)
    )
    number = pl.col("model").replace_strict(
        list(published), list(published.values()), default=None, return_dtype=pl.Float64
    )
    own = found.with_columns(published=number if published else pl.lit(None, pl.Float64))
    return own.sort("published", descending=True, nulls_last=True, maintain_order=True)


def with_published(rows: pl.DataFrame, metric: str) -> Correlation | None:
    """Spearman's correlation of a metric with the published numbers; None if it has none."""
    both = rows.drop_nulls(["published", metric])
    return spearman(both["published"].to_numpy(), both[metric].to_numpy())


def correlation_text(found: Correlation) -> str:
    """A rank correlation in words.

    Example:
        >>> correlation_text(Correlation(0.5, None, 3))
        'rank correlation 0.50 over 3 models'
    """
    ends = () if found.interval is None else (found.interval.low, found.interval.high)
    texts = [number_text(end, decimals=2) for end in ends]
    around = f" ({' to '.join(texts)})" if texts else ""
    return f"rank correlation {number_text(found.value, decimals=2)}{around} over {found.n} models"
