"""Main results: every cell's accuracy, length and failures, with intervals."""

from typing import Literal

from pydantic import Field

from mbt_cli.core.metric_tables import metric_table
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table

MAIN_METRICS = (
    "exact_match",
    "substring_match",
    "f1_score",
    "math_match",
    "answer_rate",
    "judge_accuracy",
    "tokens",
    "aes",
    "degeneration",
)


class MainResults(Table):
    """One row a model, prompt and variant on each benchmark: how often it is right, how long."""

    kind: Literal["main_results"] = "main_results"
    metrics: tuple[str, ...] = Field(default=MAIN_METRICS, min_length=1)
    """Metrics to show, in this order; those that no cell has are left out."""

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(inputs, name=self.kind, title="Main results", metrics=self.metrics)
