"""Beliefs of judges as arrays, and scores of single beliefs: Brier, log loss, calibration.

All of it works on columns: a belief never becomes a Python object.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import BELIEF
from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import live_only, mean_measure, samples

Numbers = npt.NDArray[np.int64]
At = Literal["last", "first"]
CLIP = float(np.finfo(np.float64).eps)
"""Probabilities of 0 count as this in logarithms, as in scikit-learn."""
_KEY = ("question_id", "sample")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of every rollout, one after another.

    Args:
        owner: Number of the rollout that each option belongs to, shape (options,), ascending.
        begins: Number of the first option of each rollout, shape (rollouts,).
        counts: Number of options of each rollout, shape (rollouts,).
        outcome: How far each option came true; NaN while that is not known, shape (options,).
        is_event: Whether the option is an event of its own, shape (options,). Of two options, whose
            probabilities say the same, only the last one in alphabetical order is: Yes rather
            than No, whatever the order in which they were shown.
    """

    owner: Numbers
    begins: Numbers
    counts: Numbers
    outcome: Values
    is_event: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Stated:
    """Every belief that was read, in the order of rollout, vote and step.

    Args:
        rollout: Number of its rollout, shape (beliefs,).
        vote: Number of its vote, in the same shape.
        step: Its step, in the same shape.
        begins: Number of its first probability, in the same shape.
        probabilities: Those of all beliefs one after another, of each with the sum 1.
    """

    rollout: Numbers
    vote: Numbers
    step: Numbers
    begins: Numbers
    probabilities: Values


def options_of(inputs: ScoreInputs) -> Options:
    """The options of the cell's rollouts."""
    return inputs.once("options", lambda: _options(inputs.rollouts))


def _options(rollouts: pl.DataFrame) -> Options:
    lists, outcomes = rollouts["options"], rollouts["resolution"]
    counts = _lengths(lists)
    resolved = _lengths(outcomes)
    owner = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    outcome = np.full(len(owner), np.nan)
    known = (resolved == counts) & (counts > 0)
    outcome[known[owner]] = _flat(outcomes.filter(pl.Series(known)))
    # ids of questions repeat over samples, and so do their options: the latter are compared once
    texts = pl.DataFrame({"options": lists}).select(
        pl.col("options"), last=pl.col("options").list.max()
    )
    is_last = texts.filter(pl.Series(counts > 0)).explode("options")
    two = (counts == 2)[owner]
    is_event = ~two | (is_last["options"] == is_last["last"]).to_numpy()
    return Options(owner, begins, counts, outcome, is_event)


def stated(inputs: ScoreInputs) -> Stated | None:
    """The beliefs of the cell that could be read; None without verdicts on beliefs.

    Raises:
        StageError: A belief has not one probability for each option of its question.
    """
    verdicts = inputs.verdicts.get(BELIEF)
    if verdicts is None:
        return None
    return inputs.once("beliefs", lambda: _stated(inputs, verdicts.rows))


def _stated(inputs: ScoreInputs, verdicts: pl.DataFrame) -> Stated:
    read = verdicts.filter(pl.col("failure").is_null(), pl.col("probabilities").is_not_null())
    numbered = inputs.rollouts.select(*_KEY).with_row_index("rollout")
    found = read.select(*_KEY, "vote", "step", "probabilities").join(numbered, on=_KEY)
    found = found.sort("rollout", "vote", "step")
    keys = found.select("rollout", "vote", "step").cast(pl.Int64)
    rollout, vote, step = (keys[name].to_numpy() for name in keys.columns)
    repeated = (np.diff(rollout) == 0) & (np.diff(vote) == 0) & (np.diff(step) == 0)
    if repeated.any():
        row = found.row(int(np.argmax(repeated)), named=True)
        raise StageError(f"two beliefs on question `{row['question_id']}` at step {row['step']}")
    counts = _lengths(found["probabilities"])
    wrong = counts != options_of(inputs).counts[rollout]
    if wrong.any():
        row = found.row(int(np.argmax(wrong)), named=True)
        raise StageError(
            f"a belief on question `{row['question_id']}` has {len(row['probabilities'])} "
            "probabilities, and its question another number of options",
            hint="judge again: the options of the benchmark have changed",
        )
    flat = _flat(found["probabilities"])
    whole = np.bincount(np.repeat(np.arange(len(counts)), counts), flat, minlength=len(counts))
    shares = flat / np.repeat(whole, counts)
    return Stated(rollout, vote, step, np.cumsum(counts) - counts, shares)


def beliefs_at(inputs: ScoreInputs, at: At) -> Values | None:
    """The belief of each rollout, shape (options,): the mean over its votes; NaN for none.

    Args:
        inputs: The cell.
        at: Whether the last or the first belief of each vote counts.
    """
    found = stated(inputs)
    if found is None:
        return None
    return inputs.once(f"beliefs {at}", lambda: _pooled(found, options_of(inputs), at))


def _pooled(found: Stated, options: Options, at: At) -> Values:
    changes = (np.diff(found.rollout) != 0) | (np.diff(found.vote) != 0)
    ends = np.append(changes, True) if at == "last" else np.insert(changes, 0, True)
    chosen = np.flatnonzero(ends[: len(found.rollout)])
    rollout = found.rollout[chosen]
    counts = options.counts[rollout]
    within = _within(counts)
    place = np.repeat(options.begins[rollout], counts) + within
    shares = found.probabilities[np.repeat(found.begins[chosen], counts) + within]
    total = np.bincount(place, shares, minlength=len(options.owner))
    votes = np.bincount(place, minlength=len(options.owner))
    means: Values = np.divide(total, votes, out=np.full(len(total), np.nan), where=votes > 0)
    return means


def per_rollout(options: Options, values: Values) -> Values:
    """Sum over the options of each rollout, shape (rollouts,); NaN without any."""
    size = len(options.counts)
    sums = np.bincount(options.owner, values, minlength=size)
    return np.where(options.counts > 0, sums, np.nan)


def brier_values(inputs: ScoreInputs, at: At) -> Values | None:
    """Half of Brier's sum over the options for each rollout; NaN without a belief or outcome."""
    belief, options = beliefs_at(inputs, at), options_of(inputs)
    if belief is None:
        return None
    return live_only(inputs, per_rollout(options, (belief - options.outcome) ** 2) / 2)


def accuracy_of_beliefs(inputs: ScoreInputs, at: At) -> Values | None:
    """How far the likeliest option came true, the mean over those that are equally likely."""
    belief, options = beliefs_at(inputs, at), options_of(inputs)
    if belief is None:
        return None
    chosen = favourites(options, belief)
    return live_only(inputs, per_rollout(options, chosen * options.outcome))


def favourites(options: Options, belief: Values) -> Values:
    """1 for the likeliest option of each rollout, equal shares for several; shape (options,)."""
    has = options.counts > 0
    most = np.full(len(options.counts), np.nan)
    if len(belief):
        most[has] = np.maximum.reduceat(belief, options.begins[has])
    is_most = (belief >= most[options.owner] - 1e-12).astype(np.float64)
    found: Values = is_most / np.maximum(per_rollout(options, is_most), 1)[options.owner]
    return np.where(np.isnan(belief), np.nan, found)


class _BeliefScore(Score):
    """A score of single beliefs."""

    at: At = "last"
    """Which belief of each rollout counts, where there are several: the last or the first."""

    def needs(self) -> Collection[str]:
        return (BELIEF,)

    def settings(self, **more: Json) -> Mapping[str, Json]:
        """What a reader needs to recompute its numbers."""
        return {"at": self.at, **more}


class Brier(_BeliefScore):
    """Squared distance of beliefs from what came true; lower is better.

    Formula: sum over the options of (p - o)^2, halved: for two options (p - o)^2 of either. o is 1
    for the option that came true and 0 for others, or the shares of a market that paid several. p
    is the mean of the votes, each divided by its sum. Also: `brier_unread`, the share of beliefs
    that could not be read.
    Unit: 0 to 1, averaged within questions first.
    Reads: verdicts of `belief`: `probabilities`, `step`, `vote`; questions' `resolution`.
    No belief, no reply, no outcome: no value, counted; never a guess.
    Known holes: rewards knowing what is common; compare policies on the same questions.
    Source: Brier 1950; scikit-learn's `brier_score_loss` with `scale_by_half=True`.
    """

    kind: Literal["brier"] = "brier"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = brier_values(inputs, self.at)
        if values is None:
            return []
        own = mean_measure(inputs, "brier", values, unit="index", settings=self.settings())
        unread = mean_measure(inputs, "brier_unread", _unread(inputs), settings=self.settings())
        return [own, unread]


class LogLoss(_BeliefScore):
    """Negative natural logarithm of the belief in what came true; lower is better.

    Formula: - sum over the options of o ln p, where a p below 2.2e-16 counts as 2.2e-16. o and p
    as in `brier`.
    Unit: nats, averaged within questions first.
    Reads: verdicts of `belief`: `probabilities`, `step`, `vote`; questions' `resolution`.
    No belief, no reply, no outcome: no value, counted.
    Known holes: one belief of 0 in what came true costs 36 nats, and decides the mean.
    Source: Good 1952; scikit-learn's `log_loss`.
    """

    kind: Literal["log_loss"] = "log_loss"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        belief, options = beliefs_at(inputs, self.at), options_of(inputs)
        if belief is None:
            return []
        losses = -options.outcome * np.log(np.clip(belief, CLIP, 1 - CLIP))
        values = live_only(inputs, per_rollout(options, losses))
        is_clipped = (belief < CLIP) & (options.outcome > 0)
        settings = self.settings(clip=CLIP, clipped=int(is_clipped.sum()))
        return [mean_measure(inputs, "log_loss", values, unit="nats", settings=settings)]


class BeliefAccuracy(_BeliefScore):
    """Share of rollouts whose likeliest option came true.

    Formula: o of the option with the highest p; the mean over options that are equally likely.
    Unit: per cent, averaged within questions first.
    Reads: verdicts of `belief`: `probabilities`, `step`, `vote`; questions' `resolution`.
    No belief, no reply, no outcome: no value, counted.
    Known holes: says nothing of how sure a belief is; where most questions resolve to No, always
    saying No does well.
    """

    kind: Literal["belief_accuracy"] = "belief_accuracy"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = accuracy_of_beliefs(inputs, self.at)
        if values is None:
            return []
        return [mean_measure(inputs, "belief_accuracy", values, settings=self.settings())]


class Calibration(_BeliefScore):
    """Whether what is believed with p comes true in a share p: ECE, and Murphy's parts of Brier.

    Formula: beliefs p in an event and outcomes o in bins b of equal width, with the shares n_b of
    all events and means p_b and o_b. `calibration_ece` = sum of n_b |p_b - o_b|.
    `calibration_reliability` = sum of n_b (p_b - o_b)^2, `calibration_resolution` = sum of
    n_b (o_b - o)^2, `calibration_uncertainty` = o (1 - o). `calibration_within` is the rest, so
    that reliability - resolution + uncertainty + within is the mean of (p - o)^2; it is 0 where
    all beliefs of a bin are equal. Of two options one is the event, the last in alphabetical
    order (Yes rather than No); of more, each option is.
    Unit: 0 to 1; means are over questions, and intervals resample questions.
    Reads: verdicts of `belief`: `probabilities`, `step`, `vote`; questions' `resolution`.
    No belief, no reply, no outcome: no value, counted.
    Known holes: ECE and reliability are above 0 by chance where questions are few, and depend on
    the bins. `curve` in the settings of `calibration_ece` has mean belief, mean outcome and share
    of each bin.
    Source: Naeini and others 2015, Guo and others 2017 (ECE; bins as scikit-learn's
    `calibration_curve`, with their upper ends); Murphy 1973, Stephenson and others 2008 (parts).
    """

    version: ClassVar[int] = 2
    one_of_a_kind: ClassVar[bool] = True

    kind: Literal["calibration"] = "calibration"
    bins: int = Field(default=10, ge=1, le=100)
    """Number of bins of equal width from 0 to 1."""

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        belief, options = beliefs_at(inputs, self.at), options_of(inputs)
        if belief is None:
            return []
        known = options.is_event & ~np.isnan(belief) & ~np.isnan(options.outcome)
        owner, p, o = options.owner[known], belief[known], options.outcome[known]
        # as scikit-learn: each bin has its upper end, the first one both ends
        place = np.searchsorted(np.linspace(0, 1, self.bins + 1)[1:-1], p)
        size = len(options.counts)
        events = np.bincount(owner, minlength=size)
        share = np.divide(1.0, events, out=np.zeros(size), where=events > 0)[owner]
        missing = live_only(inputs, np.where(events > 0, 0.0, np.nan))
        columns: dict[str, Values] = {}
        used = np.unique(place)
        for number in used:
            here = place == number
            for name, value in (("n", share), ("p", share * p), ("o", share * o)):
                summed = np.bincount(owner[here], value[here], minlength=size)
                columns[f"{name}{number}"] = summed + missing
        columns["value"] = np.bincount(owner, share * (p - o) ** 2, minlength=size) + missing
        questions = samples(inputs).per_question(columns)
        if not len(used):
            return []
        settings = self.settings(bins=self.bins)
        curve = {"curve": _curve(questions, used)}
        parts = {
            "ece": _ece,
            "reliability": _reliability,
            "resolution": _resolution,
            "uncertainty": _uncertainty,
            "within": _within_bins,
        }
        return [
            Measure(
                metric=f"calibration_{name}",
                unit="index",
                questions=questions,
                estimate=partial(part, used.tolist()),
                settings={**settings, **(curve if name == "ece" else {})},
            )
            for name, part in parts.items()
        ]


def _curve(questions: pl.DataFrame, bins: npt.NDArray[np.int64]) -> Json:
    """Points of the reliability curve: mean belief, mean outcome and share of the events."""
    means = questions.select(pl.exclude("question_id", "n", "failed").mean()).row(0, named=True)
    return [
        [
            round(means[f"p{b}"] / means[f"n{b}"], 6),
            round(means[f"o{b}"] / means[f"n{b}"], 6),
            round(means[f"n{b}"], 6),
        ]
        for b in bins.tolist()
        if means[f"n{b}"]
    ]


def _ece(bins: Sequence[int], means: Means) -> Values:
    return np.asarray(sum(np.abs(means[f"p{b}"] - means[f"o{b}"]) for b in bins))


def _over(part: Values, whole: Values) -> Values:
    """A quotient; 0 where a resample has nothing in a bin."""
    return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)


def _reliability(bins: Sequence[int], means: Means) -> Values:
    return np.asarray(
        sum(_over((means[f"p{b}"] - means[f"o{b}"]) ** 2, means[f"n{b}"]) for b in bins)
    )


def _base_rate(bins: Sequence[int], means: Means) -> Values:
    return np.asarray(sum(means[f"o{b}"] for b in bins))


def _resolution(bins: Sequence[int], means: Means) -> Values:
    rate = _base_rate(bins, means)
    return np.asarray(
        sum(_over((means[f"o{b}"] - means[f"n{b}"] * rate) ** 2, means[f"n{b}"]) for b in bins)
    )


def _uncertainty(bins: Sequence[int], means: Means) -> Values:
    rate = _base_rate(bins, means)
    return rate * (1 - rate)


def _within_bins(bins: Sequence[int], means: Means) -> Values:
    between = _reliability(bins, means) - _resolution(bins, means) + _uncertainty(bins, means)
    return means["value"] - between


def _unread(inputs: ScoreInputs) -> Values:
    """Share of the beliefs on each rollout that could not be read; NaN without any."""
    rows = inputs.verdicts[BELIEF].rows
    shares = rows.group_by(_KEY).agg(unread=pl.col("failure").is_not_null().mean())
    found = inputs.rollouts.select(_KEY).join(shares, on=_KEY, how="left", maintain_order="left")
    return live_only(inputs, found["unread"].fill_null(np.nan).to_numpy())


def _lengths(lists: pl.Series) -> Numbers:
    return lists.list.len().fill_null(0).cast(pl.Int64).to_numpy()


def _flat(lists: pl.Series) -> Values:
    """The numbers of lists, none of which is empty, one after another."""
    if not len(lists):
        return np.empty(0)
    return lists.explode().cast(pl.Float64).to_numpy()


def _within(counts: Numbers) -> Numbers:
    """0, 1, ... within each group of so many."""
    begins = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(begins, counts)
