"""MathMatch: is the math answer right, whatever form it is written in?"""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import math_values, mean_measure
from mbt_cli.interfaces import Score


class MathMatch(Score):
    r"""Share of math answers that mean the same as the gold answer.

    Formula: the answer is the tagged one, else the last \boxed one outside the thinking. For
    `gsm8k` its last number (else the one after ####) equals the gold number, commas and trailing
    .00 apart: the official match. Otherwise 1 if the LaTeX is equal but for spaces and brackets'
    sizes, or if math-verify finds both equal.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, `reply`; questions `answer`, `answer_aliases`.
    No answer: wrong (0). Failed rollout: no value, counted.
    Known holes: a comparison that takes math-verify longer than 5 seconds counts as different;
    answers in words are compared as text. Needs the extra `math` where plain forms differ.
    """

    kind: Literal["math_match"] = "math_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = math_values(inputs)
        return [mean_measure(inputs, self.kind, values, shape="binary")]
