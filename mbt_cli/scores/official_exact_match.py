"""OfficialExactMatch: exact match as the benchmark's own scorer computes it."""

from collections.abc import Sequence
from typing import Literal

from mbt_cli.core.answers import official_rules
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import answer_values, mean_measure
from mbt_cli.interfaces import Score


class OfficialExactMatch(Score):
    """Exact match as the benchmark's own scorer computes it.

    Formula: equality of normalised texts; HotpotQA knows the gold answer only, 2Wiki (v1.1) and
    MuSiQue take gold and aliases. Benchmarks without a scorer of their own follow 2Wiki; math
    sets have none, so no number is given for them.
    Unit: per cent of samples, averaged within questions first.
    Reads: rollouts `answer`, questions `answer`, `answer_aliases`.
    No answer: 0. Failed rollout: no value, counted.
    Known holes: those of comparing words; numbers of different benchmarks follow different rules.
    """

    kind: Literal["official_exact_match"] = "official_exact_match"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        rules = official_rules(inputs.benchmark)
        if rules is None:
            return []
        values = answer_values(inputs, "official_exact_match")
        return [
            mean_measure(
                inputs,
                self.kind,
                values,
                shape="binary",
                settings={"rules": rules},
            )
        ]
