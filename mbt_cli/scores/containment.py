"""Containment: share of answers that hold a reference as whole words, side by side and in order."""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import answer_values, mean_measure
from mbt_cli.interfaces import Score


class Containment(Score):
    """Share of answers that hold a reference as whole words, side by side and in order.

    Formula: 1 if the normalised words of some reference stand consecutively in those of the
    answer, else 0; a reference that normalises to nothing is in no answer.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: wrong (0). Failed rollout: no value, counted.
    Known holes: an answer that lists many candidates scores, and so does `not X` for `X`.
    """

    kind: Literal["containment"] = "containment"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "containment")
        return [mean_measure(inputs, self.kind, values, shape="binary")]
