"""Rows of `rows.SUMMARY` from measures: the number, its interval, the paired difference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import polars as pl

from mbt_cli.core.measures import Measure
from mbt_cli.scores.statistics import (
    Floats,
    Interval,
    Quantity,
    bootstrap,
    bootstrap_p,
    mcnemar_p,
    percentile_interval,
    wilson,
)

_KEYS = ("question_id", "n", "failed")
_OF_DIFFERENCE = ("baseline", "difference", "difference_low", "difference_high", "p")


@dataclass(frozen=True, slots=True)
class Paired:
    """Two measures on their common questions, in the same order.

    Args:
        questions: `question_id`, and each column of the two measures as `own.X` and `base.X`.
    """

    questions: pl.DataFrame
    own: Quantity
    base: Quantity

    def has_values(self) -> bool:
        """Whether the number is a plain mean, so that each question has a value."""
        return list(self.own.columns) == list(self.base.columns) == ["value"]

    def is_binary(self) -> bool:
        """Whether each question has a value, and all values are 0 or 1."""
        sides = (self.own, self.base)
        return self.has_values() and all(_is_binary(side.columns["value"]) for side in sides)


def summarise_all(
    measures: Sequence[tuple[Measure, Measure | None]], *, resamples: int, seed: int
) -> list[dict[str, Any]]:
    """Rows of `rows.SUMMARY` for measures; `by` and `group` are null.

    All measures share their resamples, so ten metrics cost little more than one. `value` and its
    interval are over the measure's own questions. `baseline`, `difference`, its interval and `p`
    are over the questions of both sides; `p` is exact McNemar for 0 / 1 values, else from the
    paired bootstrap. `settings` names the test and the interval if there was a choice.

    Args:
        measures: Pairs of a measure and the same measure of the baseline cell, if it has one.
        resamples: Number of bootstrap resamples.
        seed: The same seed gives the same intervals, independent of the other measures.
    """
    parts = [_Part(measure, baseline) for measure, baseline in measures]
    quantities = [quantity for part in parts for quantity in part.quantities()]
    drawn = iter(bootstrap(quantities, resamples=resamples, seed=seed))
    return [part.row([next(drawn) for _ in part.quantities()]) for part in parts]


def paired(own: Measure, base: Measure) -> Paired:
    """Two measures, joined on the questions for which both have all columns."""
    left = _known(own).select("question_id", pl.exclude("question_id").name.prefix("own."))
    right = _known(base).select("question_id", pl.exclude("question_id").name.prefix("base."))
    both = left.join(right, on="question_id").drop_nulls().sort("question_id")
    return Paired(both, _quantity(own, both, "own."), _quantity(base, both, "base."))


def finite(value: float) -> float | None:
    """The value, or None if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None


class _Part:
    """A measure and its baseline: the quantities to resample, and the row made of them."""

    def __init__(self, measure: Measure, baseline: Measure | None) -> None:
        self.measure = measure
        known = _known(measure)
        self.n = len(known)
        self.own = _quantity(measure, known, "") if self.n else None
        self.pair = paired(measure, baseline) if baseline is not None else None
        if self.pair is not None and self.pair.questions.is_empty():
            self.pair = None

    def quantities(self) -> list[Quantity]:
        if self.own is None:
            return []
        return [self.own] if self.pair is None else [self.own, self.pair.own, self.pair.base]

    def row(self, drawn: Sequence[Floats]) -> dict[str, Any]:
        settings = dict(self.measure.settings)
        value = interval = None
        if self.own is not None:
            value = finite(self.own.value())
            interval = self._interval(drawn[0], settings)
        row = {
            "metric": self.measure.metric,
            "value": value,
            "low": interval.low if interval and value is not None else None,
            "high": interval.high if interval and value is not None else None,
            "n": self.n,
            "failed": int(self.measure.questions["failed"].sum()),
            "unit": self.measure.unit,
            **self._difference(drawn, settings),
            "by": None,
            "group": None,
        }
        return {**row, "settings": orjson.dumps(settings, option=orjson.OPT_SORT_KEYS).decode()}

    def _interval(self, drawn: Floats, settings: dict[str, Any]) -> Interval | None:
        assert self.own is not None
        if self.measure.interval == "wilson":
            values = self.own.columns["value"]
            if _is_binary(values):
                settings["interval"] = "wilson"
                return wilson(float(values.sum()), len(values))
        undefined = float(1 - np.isfinite(drawn).mean())
        if undefined:
            settings["undefined_resamples"] = round(undefined, 4)
        return percentile_interval(drawn)

    def _difference(self, drawn: Sequence[Floats], settings: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(_OF_DIFFERENCE)
        if self.pair is None:
            return row
        own, base = self.pair.own, self.pair.base
        row["baseline"] = finite(base.value())
        difference = finite(own.value() - base.value())
        if difference is None:
            return row
        apart = drawn[1] - drawn[2]
        settings["paired_questions"] = own.size
        if self.measure.binary and self.pair.is_binary():
            settings["test"] = "mcnemar"
            mine, theirs = own.columns["value"], base.columns["value"]
            p: float | None = mcnemar_p(int((mine > theirs).sum()), int((mine < theirs).sum()))
        else:
            settings["test"] = "paired bootstrap"
            p = bootstrap_p(apart)
        row |= {"difference": difference, "p": p}
        if interval := percentile_interval(apart):
            row |= {"difference_low": interval.low, "difference_high": interval.high}
        return row


def _known(measure: Measure) -> pl.DataFrame:
    """The measure's columns for questions with at least one value, sorted by id."""
    columns = [name for name in measure.questions.columns if name not in _KEYS]
    return (
        measure.questions.filter(pl.any_horizontal(pl.col(columns).is_not_null()))
        .sort("question_id")
        .select("question_id", *columns)
    )


def _quantity(measure: Measure, questions: pl.DataFrame, prefix: str) -> Quantity:
    columns = {
        name.removeprefix(prefix): questions[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        for name in questions.columns
        if name != "question_id" and name.startswith(prefix)
    }
    return Quantity(columns, measure.estimate)


def _is_binary(values: Floats) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())
