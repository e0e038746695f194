"""F1Score: mean F1 of words between the answer and its best reference (the paper's form)."""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import answer_values, mean_measure
from mbt_cli.interfaces import Score


class F1Score(Score):
    """Mean F1 of words between the answer and its best reference (the paper's form).

    Formula: max over references of 2 * shared / (words of answer + words of reference), words of
    the normalised texts, each as often as it stands in both.
    Unit: per cent, averaged over samples within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: 0. Failed rollout: no value, counted.
    Known holes: word order does not count; `yes` against `no` in a longer answer shares words.
    """

    kind: Literal["f1_score"] = "f1_score"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "f1_score")
        return [mean_measure(inputs, self.kind, values)]
