"""Scores of log-probabilities: what a context adds to that of a text."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import polars as pl

from mbt_cli.core.judge_scales import LIKELIHOOD
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.interfaces import Score
from mbt_cli.scores.scoring import live_only, mean_measure

_KEY = ("question_id", "sample")
_NATS = "nats"


class PredictabilityScore(Score):
    """How much answers to other questions raise the log-probability of an answer.

    Formula: for a trial, u = sum of sign * ln P(text | prompt) over its texts: with `uplift`
    ln P(answer | context) - ln P(answer), with `conditional_only` ln P(answer | context), with
    `judge_consistency` ln P(Yes) - ln P(No). ln P of a text is the sum over its tokens.
    `mutual_predictability` = mean of u / tokens of the text over the trials of a rollout (for
    `judge_consistency`, of u), `mutual_predictability_total` = mean of u,
    `mutual_predictability_raised` = share of trials with u > 0 (not with `conditional_only`),
    `mutual_predictability_unread` = share of trials with a text that has no log-probability.
    Unit: nats per token; nats; per cent. Averaged within questions first; intervals resample
    questions, and both sides of a difference are of the same trial, so they are paired.
    Reads: verdicts of `predictability`: `logprob`, `tokens`, `sign`, `texts`, `trial`.
    No trial with all of its texts: no value, counted; never 0.
    Known holes: a context raises the probability of any text in its style; compare with
    `target_question = "random_other"`, or with contexts of other policies.
    Source: Wen and others 2025 (mutual predictability); Miller, Resnick and Zeckhauser 2005 (peer
    prediction).
    """

    kind: Literal["mutual_predictability"] = "mutual_predictability"

    def needs(self) -> Collection[str]:
        return (LIKELIHOOD,)

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        verdicts = inputs.verdicts.get(LIKELIHOOD)
        return [] if verdicts is None else of_trials(inputs, self.kind, verdicts.rows)


def of_trials(inputs: ScoreInputs, kind: str, rows: pl.DataFrame) -> Sequence[Measure]:
    """The measures of verdicts that add up over trials: per token, total, raised, unread.

    Args:
        inputs: What the score reads.
        kind: First part of the names of the measures.
        rows: Verdicts with `question_id`, `sample`, `step`, `texts`, `sign`, `logprob`, `tokens`.
    """
    trials = _trials(rows)
    unread = _per_rollout(inputs, trials.with_columns(value=~pl.col("is_read")))
    read = trials.filter("is_read")
    measures = [
        mean_measure(inputs, kind, _per_rollout(inputs, read, "each"), unit=_NATS),
        mean_measure(inputs, f"{kind}_total", _per_rollout(inputs, read), unit=_NATS),
    ]
    differences = read.filter(pl.col("texts") > 1)
    if len(differences):
        raised = differences.with_columns(value=pl.col("value") > 0)
        measures.append(mean_measure(inputs, f"{kind}_raised", _per_rollout(inputs, raised)))
    return [*measures, mean_measure(inputs, f"{kind}_unread", unread)]


def _trials(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per trial: question_id, sample, trial, texts, is_read, value, each.

    `value` is in nats, `each` per token where all parts score the same text.
    """
    logprob, tokens = pl.col("logprob"), pl.col("tokens")
    if "scoring" not in rows.columns:
        rows = rows.with_columns(scoring=pl.lit("uplift"))
    asked = rows.filter("asked").with_columns(trial=pl.col("step") // 2)
    of_trial = asked.group_by(*_KEY, "trial", maintain_order=True).agg(
        texts=pl.col("texts").max(),
        read=logprob.is_not_null().sum(),
        value=(pl.col("sign") * logprob).sum(),
        tokens=tokens.max(),
        scoring=pl.col("scoring").max(),
    )
    same = pl.col("scoring") != "judge_consistency"
    return of_trial.with_columns(
        is_read=(pl.col("read") == pl.col("texts")).fill_null(value=False),
        each=pl.when(same).then(pl.col("value") / pl.col("tokens")).otherwise("value"),
    )


def _per_rollout(
    inputs: ScoreInputs, trials: pl.DataFrame, column: str = "value"
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The mean over the trials of each rollout, shape (rollouts,); NaN without any."""
    means = trials.group_by(*_KEY).agg(pl.col(column).cast(pl.Float64).mean().alias("mean"))
    joined = inputs.rollouts.select(*_KEY).join(means, on=_KEY, how="left", maintain_order="left")
    return live_only(inputs, joined["mean"].fill_null(np.nan).to_numpy())
