"""The score of points: their mean, the share of good proofs, the best and the worst of n runs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import POINTS, Combine
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import live_only, mean_measure, samples
from mbt_cli.scores.votes import Votes, combined

UNIT = "points"
"""Unit of points: as the judge gives them, not a share of the most."""


def point_votes(inputs: ScoreInputs, combine: Combine = "mean") -> Votes | None:
    """Combined points of each rollout, in points; None without verdicts.

    A reply without text has the fewest points, whatever the judge makes of it.
    """
    verdicts = inputs.verdicts.get(POINTS)
    if verdicts is None:
        return None
    scale, rollouts = verdicts.scale, inputs.rollouts
    found = inputs.once(
        f"points by {combine}",
        lambda: combined(rollouts, verdicts.rows, scale.number(), combine),
    )
    if "no_text" not in rollouts.columns:
        return found
    is_empty = rollouts["no_text"].is_not_null().to_numpy()
    value = np.where(is_empty, scale.low, found.value)
    return Votes(value, np.where(is_empty, 0.0, found.unparsed), found.agreement)


class PointsScore(Score):
    """Points of proofs, from the judge `proof_points`.

    Formula: `points` is the mean over questions of the mean over samples of a rollout's points:
    the mean of its read votes, or their median, smallest or largest (`over_votes`; the names then
    are `points_min_vote` and so on). `points_at_least_6` is the share of rollouts with 6 points or
    more (`at_least`). With n samples per question, `points_best` and `points_worst` are the means
    over questions of the largest and the smallest points of its n runs: what the best of n could
    reach, and what one may get. `points_unread` is the share of votes that could not be read.
    Unit: points as the judge gives them; shares in per cent of samples, averaged within questions
    first. By level or category: `by = ["metadata.level", "question_type"]` on the stage.
    Reads: verdicts of `proof_points`: `points`, `vote`, `failure`.
    Empty reply, also one that was cut in its thinking: the fewest points, without a request. Unread
    points and no reply: no value, counted; never 0 and never the most. The best and the worst are
    of the runs that were read, and a question without any has none.
    Intervals: Wilson's for the share, the studentized bootstrap over questions for the rest.
    Known holes: judges err; `judge_agreement` with human points says how far. A mean hides that
    points of proofs are nearly all at the two ends; the share does not. With unread runs the best
    is too small and the worst too large.
    Source: mean points and the share of 6 or 7 of 7 as IMO-Bench counts them, arXiv 2511.01846.
    """

    kind: Literal["points"] = "points"
    over_votes: Literal["mean", "median", "min", "max"] = "mean"
    """How the votes on one rollout become its points."""
    at_least: float = Field(default=6, ge=0)
    """Points from which on a proof counts in the share."""

    def needs(self) -> Collection[str]:
        return (POINTS,)

    def collides(self, other: Score) -> bool:
        return isinstance(other, PointsScore) and self.over_votes == other.over_votes

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        votes = point_votes(inputs, self.over_votes)
        if votes is None:
            return []
        scale = inputs.verdicts[POINTS].scale
        value = live_only(inputs, votes.value)
        settings: dict[str, Json] = {
            "over_votes": self.over_votes,
            "least": scale.low,
            "most": scale.high,
        }
        name = self.kind if self.over_votes == "mean" else f"{self.kind}_{self.over_votes}_vote"
        reached = np.where(np.isnan(value), np.nan, value >= self.at_least)
        found = [
            mean_measure(inputs, name, value, unit=UNIT, settings=settings),
            mean_measure(inputs, f"{name}_at_least_{self.at_least:g}", reached, shape="binary"),
        ]
        runs = int(samples(inputs).counts().max(initial=0))
        if runs > 1:
            facts = {**settings, "runs": runs}
            for ending, pick in (("best", np.fmax), ("worst", np.fmin)):
                found.append(_of_runs(inputs, f"{name}_{ending}", value, pick, facts))
        if self.over_votes == "mean":
            unread = live_only(inputs, votes.unparsed)
            found.append(mean_measure(inputs, f"{name}_unread", unread, shape="binary"))
        return found


def _of_runs(
    inputs: ScoreInputs, metric: str, values: Values, pick: np.ufunc, settings: Mapping[str, Json]
) -> Measure:
    """The mean over questions of the largest or smallest value of its samples."""
    own = samples(inputs)
    picked = np.full(len(own.ids), np.nan)
    pick.at(picked, own.question, values)  # NaN gives way to any number
    questions = own.per_question({"value": values}).with_columns(value=picked)
    questions = questions.with_columns(questions["value"].fill_nan(None))
    return Measure(metric=metric, unit=UNIT, questions=questions, settings=settings)
