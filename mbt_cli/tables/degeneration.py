"""Degeneration: replies that were cut or loop, beside what they cost in accuracy."""

from typing import Literal

from mbt_cli.core.metric_tables import metric_table
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table

_METRICS = (
    "degeneration",
    "degeneration_loops",
    "answer_rate",
    "judge_accuracy",
    "exact_match",
    "tokens",
)
_NOTES = (
    "A reply that was cut has no answer, so it counts as wrong in every accuracy.",
    "Cut and looping replies overlap; neither is part of the other.",
)


class DegenerationTable(Table):
    """Share of replies cut at the limit and of those that end in a loop, beside the accuracy."""

    kind: Literal["degeneration"] = "degeneration"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs, name=self.kind, title="Degeneration", metrics=_METRICS, notes=_NOTES
        )
