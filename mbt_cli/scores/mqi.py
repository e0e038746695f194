"""MQI: the metacognition that a trace shows, relative to its length."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.verifier import Verifier
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import (
    Accuracy,
    accuracy_values,
    cut_values,
    judges_behind,
    live_only,
    mean_measure,
    mean_over_questions,
    mean_votes,
    samples,
    token_values,
    verifier_behind,
)
from mbt_cli.scores.votes import failed_votes

Floats = npt.NDArray[np.float64]

_METACOGNITION = "metacognition"
_PHASES = range(1, 6)


class MQI(Score):
    """Metacognitive Quality Index of the traces, from the judge `phases`.

    Formula: MQI = L_obs x T_base / T, with L_obs the judge's level 0..5, T the completion tokens
    of the rollout and T_base the baseline's mean completion tokens. `mqi` is the mean over
    samples, `mqi_of_means` the method-level form: mean L_obs x T_base / mean T. Also
    `mqi_level`: mean L_obs; `mqi_phase_1` .. `mqi_phase_5`: share of traces that show the phase
    (understanding, planning, execution and monitoring, self-correction, verification);
    `mqi_gamma`: Goodman-Kruskal gamma between the trace's confidence in its answer, as the judge
    reads it, and the answer being right, over samples; `mqi_not_judged`: share of truncated
    rollouts; `mqi_unread`: share of votes that could not be parsed.
    Unit: index; level 0..5; per cent; gamma -1..1.
    Reads: verdicts of `phases`: `l_obs`, `phases`, `confidence`; rollouts `completion_tokens`;
    whatever `accuracy` reads. Several votes on a trace are averaged.
    Empty trace or reply: level 0 by the rubric. Truncated, unparsed, no reply: no value, counted;
    for `mqi` also a reply without tokens. No verdicts:
    no numbers; neither a baseline nor `base_tokens`: no `mqi` and no `mqi_of_means`. Gamma is
    undefined without one right and one wrong sample at different confidences, and absent if
    `accuracy` has nothing to read. Intervals resample the baseline with the questions, unless
    `base_tokens` is set.
    Known holes: the shortest replies dominate the mean over samples; a truncated reply would have a
    low MQI but is left out: read `mqi_not_judged`.
    """

    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["mqi"] = "mqi"
    base_tokens: float | None = Field(default=None, gt=0)
    """T_base in tokens. Default: the mean over all replies of the baseline cell."""
    accuracy: Accuracy = "judge_accuracy"
    """The measure that says whether an answer is right (1), for gamma."""

    def verifier(self, own: Verifier) -> Verifier | None:
        return verifier_behind(self.accuracy, own)

    def needs(self) -> Collection[str]:
        return (_METACOGNITION, *judges_behind(self.accuracy))

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        verdicts = inputs.verdicts.get(_METACOGNITION)
        if verdicts is None:
            return []
        level = mean_votes(inputs, _METACOGNITION, verdicts.scale.number())
        shares = {
            f"mqi_phase_{k}": mean_votes(inputs, _METACOGNITION, pl.col("phases").list.contains(k))
            for k in _PHASES
        }
        shares["mqi_not_judged"] = cut_values(inputs)
        unparsed = failed_votes(inputs.rollouts, verdicts.rows)
        shares["mqi_unread"] = live_only(inputs, unparsed)
        return [
            *self._index(inputs, level),
            mean_measure(inputs, "mqi_level", level, unit="level"),
            *(mean_measure(inputs, name, v, shape="binary") for name, v in shares.items()),
            *self._gamma(inputs),
        ]

    def _index(self, inputs: ScoreInputs, level: Values) -> Sequence[Measure]:
        base = self.base_tokens or _base_tokens(inputs)
        if base is None:
            return []
        change = None if self.base_tokens else _base_change(inputs)
        tokens = token_values(inputs)
        usable = ~np.isnan(level) & (tokens > 0)
        index = np.divide(level * base, tokens, out=np.full(len(level), np.nan), where=usable)
        columns = {
            "level": np.where(usable, level, np.nan),
            "tokens": np.where(usable, tokens, np.nan),
        }
        settings: Mapping[str, Json] = {"base_tokens": base}
        found = [
            mean_measure(inputs, "mqi", index, unit="index", settings=settings),
            Measure(
                metric="mqi_of_means",
                unit="index",
                questions=samples(inputs).per_question(columns, counted="level"),
                estimate=_OfMeans(base),
                settings=settings,
            ),
        ]
        if change is None:
            return found
        return [
            replace(
                one,
                questions=_with_base(one.questions, change),
                estimate=_OverBase(one.estimate),
            )
            for one in found
        ]

    def _gamma(self, inputs: ScoreInputs) -> Sequence[Measure]:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return []
        sure = mean_votes(inputs, _METACOGNITION, pl.col("confidence"))
        known = ~np.isnan(sure) & ~np.isnan(accuracy)
        columns = {"value": np.where(known, 0.0, np.nan)}
        # gamma as a function of means: the share of each (confidence, right)
        levels = np.unique(sure[known])
        for k, level in enumerate(levels):
            for name, is_it in (("right", accuracy == 1), ("wrong", accuracy < 1)):
                columns[f"{name}_{k}"] = np.where(known, (sure == level) & is_it, np.nan)
        questions = samples(inputs).per_question(columns).drop("value")
        if not len(levels):
            return []
        return [
            Measure(
                metric="mqi_gamma",
                unit="gamma",
                questions=questions,
                estimate=_gamma_estimate,
                settings={"accuracy": self.accuracy, "confidences": len(levels)},
            )
        ]


@dataclass(frozen=True, slots=True)
class _OverBase:
    """An index whose baseline is resampled with the questions: `base` has the mean 1 over all."""

    estimate: Callable[[Means], Floats]

    def __call__(self, means: Means) -> Floats:
        return self.estimate(means) * means["base"]


@dataclass(frozen=True, slots=True)
class _OfMeans:
    base: float

    def __call__(self, means: Means) -> Floats:
        return means["level"] * self.base / means["tokens"]


def _gamma_estimate(means: Means) -> Floats:
    right, wrong = (
        np.stack([means[f"{name}_{k}"] for k in range(len(means) // 2)])
        for name in ("right", "wrong")
    )
    return gamma_of_shares(right, wrong)


def _base_tokens(inputs: ScoreInputs) -> float | None:
    if inputs.baseline is None:
        return None
    tokens = token_values(inputs.baseline)
    return mean_over_questions(inputs.baseline, tokens)


def _base_change(inputs: ScoreInputs) -> pl.DataFrame | None:
    """`question_id` and `base`: tokens of the baseline by question, over their mean."""
    if inputs.baseline is None:
        return None
    tokens = token_values(inputs.baseline)
    found = samples(inputs.baseline).per_question({"value": tokens})
    own = found.join(samples(inputs).ids.to_frame("question_id"), on="question_id", how="semi")
    if not own["value"].sum():
        return None  # no question in common
    return own.select("question_id", base=pl.col("value") / pl.col("value").mean())


def _with_base(questions: pl.DataFrame, change: pl.DataFrame) -> pl.DataFrame:
    """The questions with `base`, null where they have no index, with the mean 1 over the others."""
    has_index = pl.col("value" if "value" in questions.columns else "level").is_not_null()
    joined = questions.join(change, on="question_id", how="left", maintain_order="left")
    base = pl.when(has_index).then("base")
    return joined.with_columns(base=base / base.mean())


def gamma_of_shares(right: Floats, wrong: Floats) -> Floats:
    """Goodman-Kruskal gamma between an ordered level and right / wrong.

    (concordant - discordant) / (concordant + discordant) over pairs of a right and a wrong item
    on different levels.

    Args:
        right: Weight of right items on each level, levels ascending, shape (levels, resamples).
        wrong: Weight of wrong items, likewise.

    Returns:
        Shape (resamples,); NaN without such a pair.

    Example:
        >>> gamma_of_shares(np.array([[1.0], [2.0]]), np.array([[2.0], [1.0]])).tolist()
        [0.6]
    """
    wrong_below = np.cumsum(wrong, axis=0) - wrong
    right_below = np.cumsum(right, axis=0) - right
    concordant = (right * wrong_below).sum(axis=0)
    discordant = (wrong * right_below).sum(axis=0)
    pairs = concordant + discordant
    gamma: Floats = np.divide(
        concordant - discordant, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0
    )
    return gamma
