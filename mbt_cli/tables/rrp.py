"""RRP: how soon traces reach the answer, and how much of them adds nothing."""

from typing import Literal

from mbt_cli.core.metric_tables import metric_table
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table

_METRICS = (
    "rrp_arrival",
    "rrp_redundancy",
    "rrp_regulation",
    "rrp_regulation_of_means",
    "rrp_arrival_length_aware",
    "rrp_redundancy_length_aware",
    "rrp_regulation_length_aware",
    "rrp_sentences",
    "rrp_one_paragraph",
    "rrp_never_reached",
    "rrp_not_judged",
    "rrp_unread",
)
_NOTES = (
    "Arrival: share of a trace's sentences up to the answer, 1 if it is never reached.",
    "A trace of one paragraph that reaches the answer has arrival 1, however early it does.",
    "Not judged: rollouts that were cut or have no trace; they enter no mean.",
)


class RRPTable(Table):
    """Arrival, redundancy and regulation of the traces, plain and against the baseline's length."""

    kind: Literal["rrp"] = "rrp"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs, name=self.kind, title="Reach-Redundancy Profile", metrics=_METRICS, notes=_NOTES
        )
