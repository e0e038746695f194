"""AnswerRate: share of replies that hold a well-formed answer."""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import mean_measure, rollout_values
from mbt_cli.interfaces import Score


class AnswerRate(Score):
    """Share of replies that hold a well-formed answer.

    Formula: 1 if an answer was read from the reply (for words, a closed answer pair with text in
    it outside the thinking), else 0.
    Unit: per cent of samples, averaged within questions first; the interval is Wilson's where
    each question has one sample.
    Reads: rollouts `answer`.
    Failed rollout: no value, counted.
    Known holes: says nothing about whether the answer is right, or an answer at all.
    """

    kind: Literal["answer_rate"] = "answer_rate"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        answered = rollout_values(inputs, pl.col("answer").fill_null("") != "")
        return [mean_measure(inputs, self.kind, answered, shape="share")]
