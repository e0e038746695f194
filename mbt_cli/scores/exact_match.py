"""ExactMatch: share of answers equal to the gold answer or an alias after normalising."""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import answer_values, mean_measure
from mbt_cli.interfaces import Score


class ExactMatch(Score):
    """Share of answers equal to the gold answer or an alias after normalising.

    Formula: 1 if normalise(answer) = normalise(r) for some reference r in gold and aliases, else 0;
    normalise = lower case, no ASCII punctuation, no a / an / the, white space squeezed.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: wrong (0), a reply cut at the token limit too. Failed rollout: no value, counted.
    Known holes: a right answer in other words is wrong; `9` and `nine` differ.
    Source: the paper; an answer of which normalising leaves nothing scores 0.
    """

    kind: Literal["exact_match"] = "exact_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        values = answer_values(inputs, "exact_match")
        return [mean_measure(inputs, self.kind, values, shape="binary")]
