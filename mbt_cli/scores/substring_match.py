"""SubstringMatch: share of answers that hold a reference as a run of characters."""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import answer_values, mean_measure
from mbt_cli.interfaces import Score


class SubstringMatch(Score):
    """Share of answers that hold a reference as a run of characters (the paper's form).

    Formula: 1 if normalise(r) is a substring of normalise(answer) for some reference r, else 0.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: wrong (0). Failed rollout: no value, counted.
    Known holes: `no` is found in `norway`; a reference that normalises to nothing is found in
    every answer; a long answer that lists everything scores. `containment` mends the first two.
    """

    kind: Literal["substring_match"] = "substring_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "substring_match")
        return [mean_measure(inputs, self.kind, values, shape="binary")]
