"""TokensPerCorrect: what a right answer costs."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.scoring import Accuracy, accuracy_values, judges_behind, rollout_values, samples
from mbt_cli.interfaces import Score


class TokensPerCorrect(Score):
    """Tokens spent for one right answer.

    Formula: mean tokens of all replies / mean accuracy, both over the same rollouts; wrong and cut
    replies are paid for too.
    Unit: tokens a right answer; undefined when nothing is right.
    Reads: rollouts `completion_tokens` and whatever `accuracy` reads.
    No verdicts where the judge's accuracy is meant: no number. A rollout that lacks either value
    enters neither mean and is counted.
    Known holes: lets a model look cheap that answers easy questions shortly and drops the rest.
    """

    kind: Literal["tokens_per_correct"] = "tokens_per_correct"
    accuracy: Accuracy = "judge_accuracy"
    """Which accuracy enters."""

    def needs(self) -> Collection[str]:
        return judges_behind(self.accuracy)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return []
        tokens = rollout_values(inputs, pl.col("completion_tokens"))
        missing = np.isnan(accuracy) | np.isnan(tokens)
        columns = {
            "accuracy": np.where(missing, np.nan, accuracy),
            "tokens": np.where(missing, np.nan, tokens),
        }
        return [
            Measure(
                metric=self.kind,
                unit="tokens",
                questions=samples(inputs).per_question(columns, counted="accuracy"),
                estimate=_ratio,
                settings={"accuracy": self.accuracy},
            )
        ]


def _ratio(means: Means) -> npt.NDArray[np.float64]:
    return means["tokens"] / means["accuracy"]
