"""Answer hits of a cell: what the judge says, and what can be seen without one."""

import polars as pl

from mbt_cli.core.measures import ScoreInputs
from mbt_cli.core.samples import Values
from mbt_cli.core.scoring import live_only, rollout_values
from mbt_cli.core.trace_hits import TraceHits, trace_hits
from mbt_cli.core.traces import cut_column, trace_column
from mbt_cli.core.votes import Voted, majority


def judged_hits(inputs: ScoreInputs) -> Voted | None:
    """Votes of the judge `answer_hit`; None when it was not asked.

    A cut reply was not judged (its `hit` is null without a failure): it counts as no hit, so every
    share made of this is a lower bound.
    """
    verdicts = inputs.verdicts.get("answer_hit")
    if verdicts is None:
        return None
    says_hit = pl.col("hit").fill_null(False)
    return inputs.once("answer_hit", lambda: majority(inputs.rollouts, verdicts, says_hit))


def free_hits(inputs: ScoreInputs) -> TraceHits:
    """Hits found by looking for the gold answer in the trace; NaN where the rollout failed."""

    def looked_for() -> TraceHits:
        hits = trace_hits(inputs.rollouts)
        return TraceHits(live_only(inputs, hits.substring), live_only(inputs, hits.words))

    return inputs.once("trace_hits", looked_for)


def cut_values(inputs: ScoreInputs) -> Values:
    """1 where the reply was cut, 0 where it was not, NaN where the rollout failed."""
    return rollout_values(inputs, cut_column())


def unjudgeable_values(inputs: ScoreInputs) -> Values:
    """1 where the reply was cut or has no trace, 0 where it has one, NaN where it failed."""
    return rollout_values(inputs, cut_column() | (trace_column() == ""))
