"""Degeneration: replies that were cut at the limit, and replies that end in a loop."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from mbt_cli.core.loops import tail_loop_column
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.scoring import mean_measure, rollout_values
from mbt_cli.core.traces import cut_column
from mbt_cli.interfaces import Score


class Degeneration(Score):
    """Share of replies that were cut at the limit; beside it `degeneration_loops`.

    Formula: `degeneration` is 1 if finish_reason is not stop, tool_calls or function_call.
    `degeneration_loops` is 1 if the last `unit` characters of the reply stand at least `repeats`
    times in its last `window` characters; the two overlap, neither is part of the other.
    Unit: per cent of samples, averaged within questions first; the intervals are Wilson's where
    each question has one sample.
    Reads: rollouts `finish_reason`, `reply`, `reasoning`.
    Failed rollout: no value, counted.
    Known holes: a loop that changes a word each time round is not seen; a loop that the model
    left again before its answer is not at the tail.
    """

    kind: Literal["degeneration"] = "degeneration"
    window: int = Field(default=2000, gt=0)
    """Characters at the end of a reply that are searched for a loop."""
    unit: int = Field(default=40, gt=0)
    """Characters at the very end that must come again."""
    repeats: int = Field(default=4, gt=1)
    """How often they must stand there for a loop."""

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        cut = rollout_values(inputs, cut_column())
        found = tail_loop_column(window=self.window, unit=self.unit, repeats=self.repeats)
        settings = {"window": self.window, "unit": self.unit, "repeats": self.repeats}
        loops = rollout_values(inputs, found)
        return [
            mean_measure(inputs, self.kind, cut, shape="share"),
            mean_measure(inputs, "degeneration_loops", loops, shape="share", settings=settings),
        ]
