"""Difficulty: every cell's accuracy within each tier, number of hops or type of question."""

from typing import Literal

from pydantic import Field

from mbt_cli.core.metric_tables import table_of
from mbt_cli.core.table_rows import group_rows, present
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table


class Difficulty(Table):
    """One row a cell and group of questions; the score stage must name the breakdown in `by`."""

    kind: Literal["difficulty"] = "difficulty"
    by: Literal["difficulty", "hops", "question_type"] = "difficulty"
    """What questions are grouped by."""
    metrics: tuple[str, ...] = Field(
        default=("judge_accuracy", "exact_match", "f1_score", "tokens", "degeneration"),
        min_length=1,
    )
    """Metrics to show, in this order; those that no cell has are left out."""

    def build(self, inputs: ReportInputs) -> TableData:
        rows = group_rows(inputs, present(inputs, self.metrics), self.by)
        title = f"Results by {self.by.replace('_', ' ')}"
        notes = [] if rows.height else [f'No score stage has `by = ["{self.by}"]`.']
        return table_of(inputs, rows, name=self._name(), title=title, notes=notes)

    def _name(self) -> str:
        return self.kind if self.by == "difficulty" else f"{self.kind}_{self.by}"
