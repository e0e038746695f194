"""AvgAtK: mean score of the first k samples."""

from collections.abc import Collection, Sequence
from typing import Literal

from mbt_cli.core.aggregates import avg_at_k, checked_k
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


class AvgAtK(Score):
    """Mean score of the first k samples of each question: `avg@1`, `avg@2`, `avg@4`, ...

    Formula: mean over questions of the mean score of the k samples with the lowest numbers.
    Unit: per cent.
    Reads: rollouts `sample` and whatever `of` reads.
    No answer: 0. Failed rollout: no value among the k, counted; a question with none has none.
    Known holes: avg@k of small k is one draw of a few samples; the mean over all samples
    (`exact_match`) is the steadier number. A k above the samples present is an error.
    """

    kind: Literal["avg_at_k"] = "avg_at_k"
    of: Accuracy = "exact_match"
    """The score that is averaged."""
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
                at_k_name("avg", k, self.of),
                avg_at_k(rows, scores, k),
                scores=scores,
                among=rows.rank < k,
                of=self.of,
            )
            for k in checked_k(rows, self.k)
        ]
