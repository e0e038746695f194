"""Features of a trace that can be counted: what a regression sets beside a score."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import polars as pl

from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.traces import steps_of
from mbt_cli.interfaces import Score
from mbt_cli.scores.scoring import live_only, mean_measure

_WORD = r"(?i)\b[\p{L}\p{N}]+(?:['\x{2019}]\p{L}+|[.,]\p{N}+)*\b"
_PER_WORDS = 100
_COUNTED: Mapping[str, str] = {
    "hedges": r"(?i)\b(?:may|might|could|perhaps|maybe|possibly|probably|likely|unlikely|seems?|"
    r"appears?|suggests?|uncertain|unsure|roughly|approximately|presumably|arguably)\b",
    "turns": r"(?i)\b(?:but|however|although|though|yet|instead|whereas|nevertheless|nonetheless|"
    r"on the other hand|wait|actually|conversely)\b",
    "reasons": r"(?i)\b(?:because|since|therefore|thus|hence|so that|due to|consequently|implies|"
    r"it follows)\b",
    "numbers": r"\d+(?:[.,]\d+)*",
    "questions": r"\?",
}
"""Feature to what is counted, per 100 words."""


class Features(Score):
    """Features of the text of a reasoning, for `regression` and `relations`.

    Formula: `features_words` and `features_steps` are the number of words, and of paragraphs, of
    reasoning and reply together. Per 100 words: `features_hedges` (may, perhaps, likely, seems),
    `features_turns` (but, however, wait, actually), `features_reasons` (because, therefore,
    implies), `features_numbers` (runs of digits) and `features_questions` (question marks).
    Unit: words, paragraphs, or occurrences per 100 words; averaged over samples within questions
    first.
    Reads: rollouts `reasoning` and `reply`.
    No reply, or one without words: no value, counted.
    Known holes: the lists are English and know no context ("may" is also a month). Of a program,
    only the reply that it returns is read. A coefficient of a regression on features is an
    association: what makes a question hard may change both sides.
    """

    kind: Literal["features"] = "features"
    one_of_a_kind: ClassVar[bool] = True

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        read = inputs.rollouts.select("reasoning", "reply")
        steps = [steps_of(row) for row in read.iter_rows(named=True)]
        text = pl.DataFrame({"text": ["\n\n".join(parts) for parts in steps]})
        counts = text.select(
            words=pl.col("text").str.count_matches(_WORD),
            **{name: pl.col("text").str.count_matches(found) for name, found in _COUNTED.items()},
        ).cast(pl.Float64)
        words = counts["words"].to_numpy()
        is_empty = words == 0
        values = {
            "words": (words, "words"),
            "steps": (np.array([len(parts) for parts in steps], np.float64), "paragraphs"),
            **{
                name: (_PER_WORDS * counts[name].to_numpy() / np.maximum(words, 1), "per 100 words")
                for name in _COUNTED
            },
        }
        return [
            mean_measure(
                inputs,
                f"{self.kind}_{name}",
                live_only(inputs, np.where(is_empty, np.nan, value)),
                unit=unit,
            )
            for name, (value, unit) in values.items()
        ]
