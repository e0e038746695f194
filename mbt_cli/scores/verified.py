"""Scores of what verifiers found: right replies, and instructions that were followed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.judge_scales import VERIFIED
from mbt_cli.core.measures import JUDGED_BY, Means, Measure, ScoreInputs, Verdicts
from mbt_cli.interfaces import Score
from mbt_cli.scores.samples import Values
from mbt_cli.scores.scoring import live_only, mean_measure, mean_votes, samples, verified_values
from mbt_cli.scores.statistics import is_binary

_PASSED, _OF = "passed", "parts"
_FORMS: Mapping[str, str] = {"": "passed", "_loose": "passed_loose"}
"""End of a metric's name to the field of a part that it reads."""


class _OfVerdicts(Score):
    """A score that reads the verdicts of one verifier."""

    judge: Annotated[str | None, Field(min_length=1)] = None
    """Name of the judge of a verifier whose verdicts count, if a stage has several. Unsaid: each
    has a number of its own, named after it."""

    def needs(self) -> Collection[str]:
        return (VERIFIED,)

    def chosen(self, inputs: ScoreInputs) -> ScoreInputs | None:
        """The inputs with the verdicts that count; None without any."""
        if self.judge is None:
            return inputs if VERIFIED in inputs.verdicts else None
        found: Verdicts | None = inputs.judges.get((VERIFIED, self.judge))
        return None if found is None else replace(inputs, verdicts={VERIFIED: found})

    def name(self, metric: str) -> str:
        """The name of a number in tables."""
        return metric if self.judge is None else f"{metric}{JUDGED_BY}{self.judge}"


class Verified(_OfVerdicts):
    """Share of replies that are right by a verifier, from the verdicts of the judge `verifier`.

    Formula: mean of the verdicts' `value`: 1 for right and 0 for wrong, or the share of rules that
    a reply follows if the verifier says so.
    Also: `verified_loose`, the share that passes once formatting such as bold marks and the first
    and last line are removed, for verifiers of instructions.
    Unit: per cent of samples, averaged within questions first; Wilson's interval for 0 / 1 values.
    Reads: verdicts of `verifier`: `value`, `passed_loose`, `failure`.
    No answer, also an empty reply: as the verifier finds, which is wrong (0). No reply, and no
    verdict, as when a sandbox died: no value, counted; never 0.
    Known holes: those of the verifier. A rule may pass a reply that a reader would not, and the
    reverse.
    """

    kind: Literal["verified"] = "verified"

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        chosen = self.chosen(inputs)
        values = None if chosen is None else verified_values(chosen)
        if chosen is None or values is None:
            return []
        is_share = is_binary(values[~np.isnan(values)])
        shape: Literal["binary", "number"] = "binary" if is_share else "number"
        found = [mean_measure(chosen, self.name(self.kind), values, shape=shape)]
        if chosen.verdicts[VERIFIED].rows["passed_loose"].is_not_null().any():
            loose = mean_votes(chosen, VERIFIED, pl.col("passed_loose").cast(pl.Float64))
            name = self.name(f"{self.kind}_loose")
            found.append(mean_measure(chosen, name, loose, shape="binary"))
        return found


class InstructionAccuracy(_OfVerdicts):
    """Share of instructions that are followed, over all instructions of all replies.

    Formula: followed instructions / instructions. `instruction_accuracy` counts those that are
    followed to the letter, `instruction_accuracy_loose` also those that are followed once
    formatting is removed. With `types = true` also a number for each type of instruction, such as
    `instruction_accuracy_length_constraints`.
    Unit: per cent of instructions; the interval is Wilson's, with the instructions of a question
    as a cluster.
    Reads: verdicts of `verifier`: `parts`.
    Empty reply: follows none. No reply, no verdict: no value, counted.
    Known holes: prompts with more instructions weigh more; `verified` counts prompts.
    Source: instruction-level accuracy of IFEval, arXiv 2311.07911.
    """

    kind: Literal["instruction_accuracy"] = "instruction_accuracy"
    types: bool = False
    """Whether each type of instruction has a number of its own."""

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        chosen = self.chosen(inputs)
        return [] if chosen is None else list(self._measures(chosen))

    def _measures(self, inputs: ScoreInputs) -> Iterator[Measure]:
        verdicts = inputs.verdicts[VERIFIED].rows
        parts = pl.col("parts")
        name = parts.list.eval(pl.element().struct.field("name"))
        if not verdicts.select(parts.list.len().sum()).item():
            return
        types: list[str | None] = [None]
        if self.types:
            names = verdicts.select(name.list.explode().str.split(":").list.first().unique())
            types += sorted(names.to_series().drop_nulls())
        for kind in types:
            for ending, field in _FORMS.items():
                yield self._share(inputs, kind, ending, field)

    def _share(self, inputs: ScoreInputs, kind: str | None, ending: str, field: str) -> Measure:
        """The share of the parts of a type, or of all, whose `field` holds."""
        part = pl.element()
        own = pl.col("parts")
        if kind is not None:
            is_own = part.struct.field("name").str.split(":").list.first() == kind
            own = own.list.eval(part.filter(is_own))
        count = own.list.len()
        passed = own.list.eval(part.struct.field(field).cast(pl.Int64)).list.sum()
        has_parts = pl.when(count > 0)
        columns = {
            _PASSED: mean_votes(inputs, VERIFIED, has_parts.then(passed)),
            _OF: mean_votes(inputs, VERIFIED, has_parts.then(count)),
        }
        name = "_".join(filter(None, (self.kind, kind))) + ending
        live: dict[str, Values] = {k: live_only(inputs, v) for k, v in columns.items()}
        return Measure(
            metric=self.name(name),
            unit="percent",
            questions=samples(inputs).per_question(live, counted=_OF),
            estimate=_ratio,
            items=(_PASSED, _OF),
        )


def _ratio(means: Means) -> npt.NDArray[np.float64]:
    return means[_PASSED] / means[_OF]
