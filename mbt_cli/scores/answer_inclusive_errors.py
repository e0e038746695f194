"""AnswerInclusiveErrors: wrong answers whose trace had reached the right one."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from mbt_cli.core.hits import free_hits, judged_hits
from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.samples import Values
from mbt_cli.core.scoring import Accuracy, accuracy_values, judges_behind, mean_measure, samples
from mbt_cli.interfaces import Score


class AnswerInclusiveErrors(Score):
    """Share of all predictions that are wrong although the trace reaches the gold answer.

    Formula: `answer_inclusive_errors` is 1 if the answer is not right and the judge `answer_hit`
    says YES. `answer_inclusive_errors_of_errors` is the same over wrong answers only (ratio of
    the two means). `_substring` and `_words` behind the name: with the judge-free hits.
    Unit: per cent of all samples (of wrong samples), averaged within questions first.
    Reads: whatever `accuracy` reads, and what the score `answer_hit` reads.
    No answer: wrong. Cut reply: wrong, and no hit for the judge, so the share is a lower bound.
    A rollout whose correctness or hit could not be read has no value and is counted.
    Known holes: those of both judgements together; not right means below 1, so with F1 every
    partly right answer is an error.
    """

    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"
    accuracy: Accuracy = "judge_accuracy"
    """Which measure says that an answer is right."""

    def needs(self) -> Collection[str]:
        return judges_behind(self.accuracy)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return []
        free = free_hits(inputs)
        hits = {"_substring": free.substring, "_words": free.words}
        votes = judged_hits(inputs)
        if votes is not None:
            hits = {"": votes.value, **hits}
        return [m for name, hit in hits.items() for m in self._pair(inputs, name, accuracy, hit)]

    def _pair(
        self, inputs: ScoreInputs, name: str, accuracy: Values, hit: Values
    ) -> Sequence[Measure]:
        missing = np.isnan(accuracy) | np.isnan(hit)
        wrong = np.where(missing, np.nan, accuracy < 1)
        error = np.where(missing, np.nan, wrong * hit)
        settings = {"accuracy": self.accuracy}
        questions = samples(inputs).per_question({"error": error, "wrong": wrong}, counted="error")
        return [
            mean_measure(inputs, self.kind + name, error, shape="binary", settings=settings),
            Measure(
                metric=f"{self.kind}_of_errors{name}",
                unit="percent",
                questions=questions,
                estimate=_of_errors,
                settings=settings,
            ),
        ]


def _of_errors(means: Means) -> npt.NDArray[np.float64]:
    return means["error"] / means["wrong"]
