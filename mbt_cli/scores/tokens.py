"""Tokens: mean length of the replies."""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import mean_measure, rollout_values
from mbt_cli.interfaces import Score


class Tokens(Score):
    """Mean length of the replies.

    Formula: mean of completion tokens, reasoning included, as the server counts them.
    Unit: tokens a reply, averaged over samples within questions first.
    Reads: rollouts `completion_tokens`.
    Failed rollout, or one whose server gave no count: no value, counted.
    Known holes: models with different tokenizers are not comparable; replies cut at the limit
    enter with the limit, so the mean hangs on `max_tokens`.
    """

    kind: Literal["tokens"] = "tokens"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        tokens = rollout_values(inputs, pl.col("completion_tokens"))
        return [mean_measure(inputs, self.kind, tokens, unit="tokens")]
