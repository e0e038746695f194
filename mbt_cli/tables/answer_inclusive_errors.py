"""Answer-inclusive errors: wrong answers whose trace had reached the right one."""

from typing import Literal

from mbt_cli.core.metric_tables import metric_table
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table

_METRICS = (
    "answer_inclusive_errors",
    "answer_inclusive_errors_of_errors",
    "answer_inclusive_errors_substring",
    "answer_inclusive_errors_words",
    "answer_hit",
    "answer_hit_substring",
    "answer_hit_words",
    "judge_accuracy",
)
_NOTES = ("Shares are of all predictions; `of all errors` is of wrong predictions.",)


class AnswerInclusiveErrorsTable(Table):
    """How often a trace reaches the gold answer and the final answer is wrong all the same."""

    kind: Literal["answer_inclusive_errors"] = "answer_inclusive_errors"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs, name=self.kind, title="Answer-inclusive errors", metrics=_METRICS, notes=_NOTES
        )
