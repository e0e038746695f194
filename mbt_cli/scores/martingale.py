"""The martingale property: whether a change of belief can be foretold from the belief before it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import BELIEF
from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.interfaces import Judge, Score
from mbt_cli.scores.beliefs import Numbers, Options, Stated, options_of, stated
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import live_only, samples

_ODDS_CLIP = 1e-6


class Martingale(Score):
    """Slope of the change of belief on the belief before it: 0 for a reasoner without bias.

    Formula: b is the belief in an event before a reasoning, d what it changes by. `martingale` is
    the least-squares slope of d on b, (mean(b d) - mean(b) mean(d)) / (mean(b^2) - mean(b)^2):
    above 0 beliefs become more extreme (entrenchment), below 0 they go back to the middle. With
    several votes b and d are their means. `martingale_instrument`, with two votes or more, takes
    the belief b' of another vote as the instrument of b: (mean(b' d) - mean(b') mean(d)) /
    (mean(b' b) - mean(b') mean(b)), over all ordered pairs of votes. Noise in b alone makes
    `martingale` negative, and leaves this one unbiased. `martingale_change` is the mean of |d|;
    `martingale_loss` = |slope|, less `informative_weight` times mean |d| with `informative = true`,
    so that never changing a belief is not the best.
    Of two options one is the event, the last in alphabetical order; of more, each option is.
    Unit: slope; means are over questions, of each the mean over its rollouts.
    Reads: verdicts of `belief` with `of = "ends"` or `"steps"`: `probabilities`, `step`, `vote`.
    No outcome is needed. A rollout with one belief alone: no value, counted.
    Known holes: votes with temperature 0 are copies, and no instruments. Slopes measure bias of a
    kind: a belief can be a martingale and wrong.
    Source: He and others 2025 (Martingale Score); instrument: Wald 1940, Angrist and Krueger 2001.
    Change, granularity, regularisation and informative term are settings; their forms are ours.
    """

    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["martingale"] = "martingale"
    change: Literal["difference", "log_odds"] = "difference"
    """How beliefs and their changes are counted: as probabilities, or as log odds (of beliefs
    between 1e-6 and 1 - 1e-6)."""
    granularity: Literal["rollout", "step"] = "rollout"
    """What one change is: from the first belief of a rollout to the last, or from each step to the
    next."""
    regularisation: Literal["none", "l1", "l2"] = "none"
    """Shrinks `martingale` towards 0: `l2` adds `strength` to the variance of b, `l1` takes it from
    the size of the covariance."""
    strength: Annotated[float, Field(ge=0)] = 0.0
    """Strength of the regularisation."""
    informative: bool = False
    """Whether `martingale_loss` credits beliefs that move."""
    informative_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of mean |d| in `martingale_loss`."""

    @model_validator(mode="after")
    def _has_strength(self) -> Self:
        if (self.regularisation == "none") != (self.strength == 0):
            raise ValueError("`regularisation` and a `strength` above 0 belong together")
        return self

    def needs(self) -> Collection[str]:
        return (BELIEF,)

    def refuses(self, judges: Sequence[Judge]) -> str | None:
        if any(getattr(judge, "of", "ends") != "rollout" for judge in judges):
            return None
        what = '`martingale` needs a belief before and after the reasoning: set `of = "ends"` or'
        return f'{what} `of = "steps"` on the judge'

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        found = stated(inputs)
        if found is None:
            return []
        moves = _moves(found, options_of(inputs), self.granularity, self.change)
        columns = {
            name: live_only(inputs, values)
            for name, values in moves.per_rollout(len(inputs.rollouts)).items()
        }
        if np.isnan(columns["b"]).all():
            return []
        questions = samples(inputs).per_question(columns, counted="b")
        settings = {
            "change": self.change,
            "granularity": self.granularity,
            "regularisation": self.regularisation,
            "strength": self.strength,
        }
        slope = partial(_slope, self.regularisation, self.strength)
        weight = self.informative_weight if self.informative else 0.0
        plain = questions.select("question_id", "n", "failed", "b", "d", "bb", "bd")
        crossed = questions.select("question_id", "n", "failed", "cb", "cd", "cbb", "cbd")
        sizes = questions.select("question_id", "n", "failed", value="size")
        whole = questions.select("question_id", "n", "failed", "b", "d", "bb", "bd", "size")
        made = [
            Measure("martingale", "slope", plain, slope, settings),
            Measure(
                "martingale_change",
                "index",
                sizes,
                settings={**settings, "path": _path(found, options_of(inputs))},
            ),
            Measure(
                "martingale_loss",
                "index",
                whole,
                partial(_loss, slope, weight),
                {**settings, "informative_weight": weight},
            ),
        ]
        if crossed["cb"].null_count() < crossed.height:
            own = {name: settings[name] for name in ("change", "granularity")}
            made.insert(1, Measure("martingale_instrument", "slope", crossed, _instrument, own))
        return made


_POINTS = 5


def _path(found: Stated, options: Options) -> Json:
    """Points of the mean series of beliefs.

    Each has the progress from 0 to 1, the distance from the first belief (half the sum of the
    absolute differences), and the belief in what came true, or null.
    """
    is_new = np.ones(len(found.rollout), bool)
    for key in (found.rollout, found.vote):
        is_new[1:] &= key[1:] == key[:-1]
    is_new[1:] = ~is_new[1:]
    begins = np.flatnonzero(is_new)
    counts = np.diff(np.append(begins, len(is_new)))
    begins, counts = begins[counts > 1], counts[counts > 1]
    rollout = found.rollout[begins]
    sizes = options.counts[rollout]
    series = np.repeat(np.arange(len(begins)), sizes)
    within = np.arange(len(series)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    outcome = options.outcome[np.repeat(options.begins[rollout], sizes) + within]
    points: list[Json] = []
    first: Values | None = None
    for progress in np.linspace(0, 1, _POINTS):
        row = begins + np.rint(progress * (counts - 1)).astype(np.int64)
        shares = found.probabilities[np.repeat(found.begins[row], sizes) + within]
        first = shares if first is None else first
        moved = np.bincount(series, np.abs(shares - first) / 2, minlength=len(begins))
        true = np.bincount(series, shares * outcome, minlength=len(begins))
        known = true[~np.isnan(true)]
        in_truth = round(float(known.mean()), 6) if len(known) else None
        points.append([round(float(progress), 4), round(float(moved.mean()), 6), in_truth])
    return points


def _slope(regularisation: str, strength: float, means: Means) -> Values:
    covariance = means["bd"] - means["b"] * means["d"]
    variance = means["bb"] - means["b"] ** 2
    if regularisation == "l2":
        variance = variance + strength
    if regularisation == "l1":
        covariance = np.sign(covariance) * np.maximum(np.abs(covariance) - strength, 0.0)
    return covariance / variance


def _instrument(means: Means) -> Values:
    covariance = means["cbd"] - means["cb"] * means["cd"]
    return np.asarray(covariance / (means["cbb"] - means["cb"] ** 2))


def _loss(slope: partial[Values], weight: float, means: Means) -> Values:
    return np.asarray(np.abs(slope(means)) - weight * means["size"])


@dataclass(frozen=True, slots=True)
class _Moves:
    """Changes of belief: of one event, between the same two points, over all votes.

    Args:
        rollout: Number of the rollout, shape (moves,).
        votes: Number of votes, in the same shape.
        b: Sum over the votes of the belief before it; and so on.
    """

    rollout: Numbers
    votes: Numbers
    b: Values
    d: Values
    bb: Values
    bd: Values
    size: Values

    def per_rollout(self, rollouts: int) -> dict[str, Values]:
        """Means over the moves of each rollout; NaN without any.

        `b`, `d`, `bb` and `bd` are of the mean over the votes, `size` is the mean size of d. `cb`,
        `cd`, `cbb` and `cbd` are the means over ordered pairs of different votes, of which one
        gives the instrument; NaN for moves with one vote.
        """
        v = self.votes.astype(np.float64)
        b, d = self.b / v, self.d / v
        pairs = np.where(self.votes > 1, v * (v - 1), np.nan)
        has_pair = np.where(self.votes > 1, 1.0, np.nan)
        columns = {
            "b": b,
            "d": d,
            "bb": b * b,
            "bd": b * d,
            "size": self.size / v,
            "cb": b * has_pair,
            "cd": d * has_pair,
            "cbb": (self.b**2 - self.bb) / pairs,
            "cbd": (self.b * self.d - self.bd) / pairs,
        }
        found = {}
        for name, values in columns.items():
            there = ~np.isnan(values)
            counts = np.bincount(self.rollout[there], minlength=rollouts)
            sums = np.bincount(self.rollout[there], values[there], minlength=rollouts)
            means = np.full(rollouts, np.nan)
            found[name] = np.divide(sums, counts, out=means, where=counts > 0)
        return found


def _moves(found: Stated, options: Options, granularity: str, change: str) -> _Moves:
    """The changes of belief of all votes."""
    counts = options.counts[found.rollout]
    row = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(row)) - np.repeat(found.begins, counts)
    is_event = options.is_event[options.begins[found.rollout][row] + within]
    row, within, p = row[is_event], within[is_event], found.probabilities[is_event]
    rollout, vote, step = found.rollout[row], found.vote[row], found.step[row]
    # beliefs come by rollout, vote and step; of several events, each has a series of its own
    if (counts > 2).any():
        order = np.lexsort((step, vote, within, rollout))
        rollout, vote, step, within, p = (x[order] for x in (rollout, vote, step, within, p))
    if change == "log_odds":
        p = np.clip(p, _ODDS_CLIP, 1 - _ODDS_CLIP)
        p = np.log(p / (1 - p))
    same = np.ones(max(len(p) - 1, 0), bool)
    for key in (rollout, vote, within):
        same &= key[1:] == key[:-1]
    if granularity == "step":
        first = np.flatnonzero(same)
        last = first + 1
    else:
        begins = np.flatnonzero(np.insert(~same, 0, True)) if len(p) else np.empty(0, np.int64)
        ends = np.append(begins[1:], len(p)) - 1
        moved = ends > begins
        first, last = begins[moved], ends[moved]
    # votes are compared on moves between the same points; a rollout's own are its ends
    points = (step[first], step[last]) if granularity == "step" else ()
    keys = (rollout[first], within[first], *points)
    order = np.lexsort(keys[::-1])
    keys = tuple(key[order] for key in keys)
    b, d = p[first][order], (p[last] - p[first])[order]
    if not len(b):
        nothing = np.empty(0)
        whole = np.empty(0, np.int64)
        return _Moves(whole, whole, *(nothing,) * 5)
    is_new = np.zeros(len(b), bool)
    is_new[0] = True
    for key in keys:
        is_new[1:] |= key[1:] != key[:-1]
    at = np.flatnonzero(is_new)
    sums = [np.add.reduceat(values, at) for values in (b, d, b * b, b * d, np.abs(d))]
    return _Moves(keys[0][at], np.diff(np.append(at, len(b))), *sums)
