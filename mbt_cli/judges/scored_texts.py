"""What judges on log-probabilities share: the columns of a scored text, and its reading.

Each text that is scored has a row; the sum of `sign * logprob` over the `texts` rows of a trial is
the trial's value.
"""

import math
from collections.abc import Mapping
from typing import Any

import orjson
import polars as pl

from mbt_cli.core.chat import Likelihood

PLACE: Mapping[str, pl.DataType] = {
    "step": pl.Int64(),  # number of the scored text
    "trial": pl.Int64(),
    "texts": pl.Int64(),  # scored texts of the trial
    "sign": pl.Int64(),  # of the text in the value of its trial
}
"""Columns that identify the text."""
SCORE: Mapping[str, pl.DataType] = {
    "logprob": pl.Float64(),  # nats, of the whole text
    "tokens": pl.Int64(),  # of the text
}
"""Columns of its log-probability."""


def scored_text(reply: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `PLACE` and `SCORE`.

    Args:
        reply: A `Likelihood` as JSON.
        row: The view that was scored.
    """
    scores: Likelihood = orjson.loads(reply)
    return {
        **{name: row[name] for name in PLACE},
        "logprob": math.fsum(scores["logprobs"]),
        "tokens": len(scores["logprobs"]),
    }
