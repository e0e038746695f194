"""Judge health: what could not be read, and how far that could move the score."""

from typing import Literal

from mbt_cli.core.metric_tables import metric_table
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table

_METRICS = (
    "judge_unread",
    "judge_accuracy",
    "judge_accuracy_if_unread_wrong",
    "judge_accuracy_if_unread_right",
    "judge_vote_agreement",
    "answer_hit_unread",
    "rrp_unread",
    "mqi_unread",
)
_NOTES = (
    "The range is the score if every unread verdict were wrong, and if every one were right.",
)


class JudgeHealth(Table):
    """Share of unread replies of each judge, the range they leave open, and how far votes agree."""

    kind: Literal["judge_health"] = "judge_health"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs, name=self.kind, title="Judge health", metrics=_METRICS, notes=_NOTES
        )
