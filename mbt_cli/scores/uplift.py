"""Scores of log-probabilities: what a reasoning adds to that of a finding."""

from collections.abc import Collection, Sequence
from typing import Literal

from mbt_cli.core.judge_scales import UPLIFT
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.interfaces import Score
from mbt_cli.scores.predictability import of_trials


class UpliftScore(Score):
    """How much a reasoning raises the log-probability of what an investigation finds.

    Formula: for a task, u = ln P(finding | reasoning, task) - ln P(finding | task), where ln P of a
    text is the sum over its tokens. `uplift` = mean of u / tokens of the finding over the tasks of
    a rollout, `uplift_total` = mean of u, `uplift_raised` = share of tasks with u > 0,
    `uplift_unread` = share of tasks with a text that has no log-probability.
    Unit: nats per token; nats; per cent. Averaged within questions first; intervals resample
    questions.
    Reads: verdicts of `uplift`: `logprob`, `tokens`, `sign`, `texts`.
    No task with both of its texts: no value, counted; never 0.
    Known holes: any text on the topic raises the probability of words of the topic; compare
    policies on the same questions, not with 0. A policy that claims little gives easier tasks.
    Source: expected change of a log score by the reasoning (Good 1952, a proper scoring rule); the
    world in the loop of martingale-training.
    """

    kind: Literal["uplift"] = "uplift"

    def needs(self) -> Collection[str]:
        return (UPLIFT,)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        verdicts = inputs.verdicts.get(UPLIFT)
        return [] if verdicts is None else of_trials(inputs, self.kind, verdicts.rows)
