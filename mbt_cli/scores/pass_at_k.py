"""PassAtK: chance that one of k samples is right."""

from collections.abc import Collection, Sequence
from typing import Literal

from mbt_cli.core.aggregates import checked_k, pass_at_k
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import (
    Accuracy,
    SampleCounts,
    accuracy_values,
    at_k_name,
    judges_behind,
    question_measure,
    samples,
)
from mbt_cli.interfaces import Score


class PassAtK(Score):
    """Chance that k samples hold a right one: `pass@1`, `pass@2`, `pass@4`, ...

    Formula: 1 - C(n - c, k) / C(n, k) per question, with n samples that have a score and c of
    them scoring exactly 1 (unbiased, arXiv 2107.03374); mean over questions.
    Unit: per cent.
    Reads: rollouts `sample` and whatever `of` reads.
    No answer: not right. Failed rollout: not among the n, counted; a question with fewer than k
    scored samples has no value.
    Known holes: with a measure that is not 0 / 1 only a full score counts as right. A k above the
    samples present is an error.
    """

    kind: Literal["pass_at_k"] = "pass_at_k"
    of: Accuracy = "exact_match"
    """The score that says what is right."""
    k: SampleCounts | None = None
    """Numbers of samples; left out: 1, 2, 4, ... up to the fewest that a question has."""

    def needs(self) -> Collection[str]:
        return judges_behind(self.of)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        scores = accuracy_values(inputs, self.of)
        if scores is None:
            return []
        rows = samples(inputs)
        return [
            question_measure(
                inputs,
                at_k_name("pass", k, self.of),
                pass_at_k(rows, scores, k),
                scores=scores,
                among=rows.rank >= 0,
                of=self.of,
            )
            for k in checked_k(rows, self.k)
        ]
