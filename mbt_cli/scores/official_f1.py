"""OfficialF1: f1 of words as the benchmark's own scorer computes it."""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.answers import official_rules
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import answer_values, mean_measure
from mbt_cli.interfaces import Score


class OfficialF1(Score):
    """F1 of words as the benchmark's own scorer computes it.

    Formula: as `f1_score`, but HotpotQA looks at the gold answer only; HotpotQA and 2Wiki give 0
    when either side is yes, no or noanswer and they differ; MuSiQue gives 1 when both sides
    normalise to nothing. Benchmarks without a scorer of their own follow 2Wiki; math sets have
    none, so no number is given for them.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: 0. Failed rollout: no value, counted.
    Known holes: those of comparing words; numbers of different benchmarks follow different rules.
    """

    kind: Literal["official_f1"] = "official_f1"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        rules = official_rules(inputs.benchmark)
        if rules is None:
            return []
        values = answer_values(inputs, "official_f1")
        return [
            mean_measure(
                inputs,
                self.kind,
                values,
                settings={"rules": rules},
            )
        ]
