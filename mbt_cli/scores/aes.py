"""AES: accuracy and length against a baseline in one number (arXiv 2501.12570)."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.baselines import beside_baseline
from mbt_cli.core.measures import Means, Measure, ScoreInputs
from mbt_cli.core.samples import Values
from mbt_cli.core.scoring import Accuracy, accuracy_values, judges_behind, rollout_values
from mbt_cli.core.traces import cut_column
from mbt_cli.interfaces import Score

Length = Literal["all", "answered", "not_truncated"]


class AES(Score):
    """Accuracy-Efficiency Score of a cell against its baseline.

    Formula: dL = (L_base - L) / L_base, dA = (A - A_base) / A_base; AES = alpha dL + beta |dA| if
    dA >= 0, else alpha dL - gamma |dA|. A and L are means over the questions that both cells
    have. The first paper's own table adds on a drop too; that is an error not reproduced here.
    Unit: index; 0 for the baseline itself, above 0 better.
    Reads: rollouts `completion_tokens` and whatever `accuracy` reads, of the cell and its
    baseline; the interval resamples both together by question.
    No baseline, or no verdicts where the judge's accuracy is meant: no number. A question that
    lacks a value on either side is left out; its failed samples are counted.
    Known holes: one number hides which of the two moved; a weak baseline (small A_base) makes
    dA large; a baseline that is never right makes it undefined.
    """

    kind: Literal["aes"] = "aes"
    alpha: float = Field(default=1.0, ge=0)
    """Weight of the length."""
    beta: float = Field(default=3.0, ge=0)
    """Weight of a gain in accuracy."""
    gamma: float = Field(default=5.0, ge=0)
    """Weight of a loss in accuracy."""
    accuracy: Accuracy = "judge_accuracy"
    """Which accuracy enters."""
    length: Length = "all"
    """Which replies' tokens enter: all, those with an answer, or those that were not cut."""

    def needs(self) -> Collection[str]:
        return (*judges_behind(self.accuracy), "baseline")

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        if inputs.baseline is None:
            return []
        own, base = self._columns(inputs), self._columns(inputs.baseline)
        if own is None or base is None:
            return []
        return [
            Measure(
                metric=self.kind,
                unit="index",
                questions=beside_baseline(inputs, own, base, counted="accuracy"),
                estimate=self._estimate,
                settings=self.model_dump(exclude={"kind"}),
            )
        ]

    def _columns(self, inputs: ScoreInputs) -> dict[str, Values] | None:
        accuracy = accuracy_values(inputs, self.accuracy)
        if accuracy is None:
            return None
        return {"accuracy": accuracy, "tokens": _tokens(inputs, self.length)}

    def _estimate(self, means: Means) -> npt.NDArray[np.float64]:
        return aes(
            means["accuracy"],
            means["tokens"],
            base=(means["base_accuracy"], means["base_tokens"]),
            weights=(self.alpha, self.beta, self.gamma),
        )


def aes(
    accuracy: npt.NDArray[np.float64],
    tokens: npt.NDArray[np.float64],
    *,
    base: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    weights: tuple[float, float, float],
) -> npt.NDArray[np.float64]:
    """The formula, elementwise.

    Args:
        accuracy: In any unit, the same as the baseline's.
        tokens: Mean length.
        base: Accuracy and mean length of the baseline.
        weights: alpha, beta, gamma.
    """
    alpha, beta, gamma = weights
    shorter = (base[1] - tokens) / base[1]
    better = (accuracy - base[0]) / base[0]
    return alpha * shorter + np.where(better >= 0, beta, gamma) * better


def _tokens(inputs: ScoreInputs, length: Length) -> Values:
    tokens = pl.col("completion_tokens")
    kept = {
        "all": tokens,
        "answered": pl.when(pl.col("answer").fill_null("") != "").then(tokens),
        "not_truncated": pl.when(~cut_column()).then(tokens),
    }
    return rollout_values(inputs, kept[length])
