"""JudgeAccuracy: share of answers found correct, and what unread replies could change."""

from collections.abc import Collection, Sequence
from typing import ClassVar, Literal

import numpy as np

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import correct_votes, live_only, mean_measure, samples
from mbt_cli.interfaces import Score


class JudgeAccuracy(Score):
    """Share of answers that the judge `answer_match` found correct.

    Formula: 1 if more than half of a rollout's readable votes have grade A, 0 if fewer than half.
    Gives too: `judge_unread`, the share of votes that could not be read;
    `judge_accuracy_if_unread_wrong` and `judge_accuracy_if_unread_right`, the score if every
    rollout without a readable majority were wrong, or right; with several votes a rollout
    `judge_vote_agreement`, the mean share of votes that say what most say.
    Unit: per cent of samples, averaged within questions first.
    Reads: verdicts of `answer_match`: `grade`, `vote`, `failure`.
    No answer: wrong (0) without asking. Unread verdict, tied votes, failed rollout, rollout
    without a verdict: no value, counted; never 0.
    Known holes: a judge errs, and may favour its own family's style; see judge agreement.
    """

    version: ClassVar[int] = 2

    kind: Literal["judge_accuracy"] = "judge_accuracy"

    def needs(self) -> Collection[str]:
        return ("answer_match",)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        votes = correct_votes(inputs)
        if votes is None:
            return []
        value = live_only(inputs, votes.value)
        found = [mean_measure(inputs, self.kind, value, shape="binary")]
        found.append(
            mean_measure(inputs, "judge_unread", live_only(inputs, votes.unread), shape="share")
        )
        missing = np.isnan(value) & ~samples(inputs).failed
        for name, filled in (("wrong", 0.0), ("right", 1.0)):
            bound = np.where(missing, filled, value)
            found.append(
                mean_measure(inputs, f"{self.kind}_if_unread_{name}", bound, shape="binary")
            )
        if not np.isnan(votes.agreement).all():
            found.append(mean_measure(inputs, "judge_vote_agreement", votes.agreement))
        return found
