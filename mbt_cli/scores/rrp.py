"""RRP: how soon a trace reaches the answer, and how much of it is redundant."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.traces import cut_column, trace_column
from mbt_cli.interfaces import Score
from mbt_cli.scores.scoring import (
    live_only,
    mean_measure,
    mean_over_questions,
    mean_votes,
    rollout_values,
    samples,
)
from mbt_cli.scores.votes import combined, failed_votes

Floats = npt.NDArray[np.float64]

_QUANTITY = "trace_redundancy"
_ARRIVAL = pl.when(pl.col("answer_paragraph") == 0).then(1.0)
_SENTENCES = pl.col("total_sentences")


class RRP(Score):
    """Reach-Redundancy Profile of the traces, from the judge `redundancy`.

    Formula, per trace: arrival rho = first_correct / total sentences, 1 if the answer is never
    reached; redundancy delta = redundant / total sentences; regulation R = 2 (1-rho)(1-delta) /
    ((1-rho) + (1-delta)), 0 when both terms are 0. `rrp_arrival`, `rrp_redundancy` and
    `rrp_regulation` are means over traces; `rrp_regulation_of_means` is R of the two means.
    `_length_aware`: rho = min(1, first_correct / T_base) (1 if never), delta = min(1, redundant /
    T_base), T_base = the baseline's mean sentences per judged trace; a
    setting of the row. `rrp_sentences`: mean sentences per trace. `rrp_one_paragraph`,
    `rrp_never_reached`: shares of judged traces. `rrp_not_judged`: share of rollouts that were
    truncated or have no trace; they enter no mean. `rrp_unread`: share of votes that could not be
    parsed.
    Unit: share of a trace's sentences (arrival, redundancy), index from 0 to 1 (regulation).
    Reads: verdicts of `redundancy`: `first_correct`, `redundant_sentences`, `total_sentences`,
    `answer_paragraph`, `paragraphs`; several votes on a trace are averaged.
    Not judged, unparsed, no reply: no value, counted. No verdicts: no numbers; no baseline
    verdicts: no length-aware numbers.
    Known holes: a one-paragraph trace that reaches the answer has rho = 1 whatever its sentences,
    so a method with few blank lines looks late: read `rrp_one_paragraph` too. Leaving out
    truncated traces flatters a method that loops: read `rrp_not_judged`.
    """

    kind: Literal["rrp"] = "rrp"

    def needs(self) -> Collection[str]:
        return (_QUANTITY,)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        verdicts = inputs.verdicts.get(_QUANTITY)
        if verdicts is None:
            return []
        arrival = _ARRIVAL.otherwise(pl.col("first_correct") / _SENTENCES)
        redundancy = pl.col("redundant_sentences") / _SENTENCES
        base = _base_sentences(inputs)
        return [
            *_profile(inputs, "", {"arrival": arrival, "redundancy": redundancy}, {}),
            *(_length_aware(inputs, base) if base else []),
            *_shares(inputs, verdicts.rows),
        ]


def regulation(arrival: Floats, redundancy: Floats) -> Floats:
    """Harmonic mean of 1 - arrival and 1 - redundancy; 0 if both are 0.

    Example:
        >>> regulation(np.array([0.5, 1.0]), np.array([0.0, 1.0])).round(4).tolist()
        [0.6667, 0.0]
    """
    early, lean = 1 - arrival, 1 - redundancy
    total = early + lean
    value: Floats = np.divide(2 * early * lean, total, out=np.zeros_like(total), where=total != 0)
    return value


def _profile(
    inputs: ScoreInputs,
    suffix: str,
    parts: Mapping[str, pl.Expr],
    settings: Mapping[str, float],
) -> list[Measure]:
    """Arrival, redundancy, and both forms of regulation."""
    left, right = 1 - parts["arrival"], 1 - parts["redundancy"]
    both = pl.when(left + right == 0).then(0.0).otherwise(2 * left * right / (left + right))
    arrival, redundancy, regulated = (
        mean_votes(inputs, _QUANTITY, part)
        for part in (parts["arrival"], parts["redundancy"], both)
    )
    columns = {"arrival": arrival, "redundancy": redundancy}
    means = [
        mean_measure(inputs, f"rrp_{name}{suffix}", values, unit=unit, settings=settings)
        for name, values, unit in (
            ("arrival", arrival, "share"),
            ("redundancy", redundancy, "share"),
            ("regulation", regulated, "index"),
        )
    ]
    of_means = Measure(
        metric=f"rrp_regulation{suffix}_of_means",
        unit="index",
        questions=samples(inputs).per_question(columns, counted="arrival"),
        estimate=_regulation_of_means,
        settings=settings,
    )
    return [*means, of_means]


def _length_aware(inputs: ScoreInputs, base: float) -> list[Measure]:
    first = _ARRIVAL.otherwise((pl.col("first_correct") / base).clip(upper_bound=1.0))
    redundant = (pl.col("redundant_sentences") / base).clip(upper_bound=1.0)
    parts = {"arrival": first, "redundancy": redundant}
    return _profile(inputs, "_length_aware", parts, {"base_sentences": base})


def _shares(inputs: ScoreInputs, verdicts: pl.DataFrame) -> list[Measure]:
    mean = partial(mean_votes, inputs, _QUANTITY)
    judged = verdicts.filter(pl.col("total_sentences").is_not_null())
    is_never = (pl.col("answer_paragraph") == 0).cast(pl.Float64)
    never = combined(inputs.rollouts, judged, is_never, "majority")
    shares = {
        "one_paragraph": mean(pl.col("paragraphs") == 1),
        "never_reached": live_only(inputs, never.value),
        "not_judged": rollout_values(inputs, cut_column() | (trace_column() == "")),
        "unread": live_only(inputs, failed_votes(inputs.rollouts, verdicts)),
    }
    return [
        mean_measure(inputs, "rrp_sentences", mean(_SENTENCES), unit="sentences"),
        *(mean_measure(inputs, f"rrp_{k}", v, shape="binary") for k, v in shares.items()),
    ]


def _base_sentences(inputs: ScoreInputs) -> float | None:
    if inputs.baseline is None or _QUANTITY not in inputs.baseline.verdicts:
        return None
    return mean_over_questions(inputs.baseline, mean_votes(inputs.baseline, _QUANTITY, _SENTENCES))


def _regulation_of_means(means: Means) -> Floats:
    return regulation(means["arrival"], means["redundancy"])
