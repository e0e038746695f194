"""MQI: how much metacognition traces show for their length, and which phases."""

from typing import Literal

from mbt_cli.core.metric_tables import metric_table
from mbt_cli.core.tables import ReportInputs, TableData
from mbt_cli.interfaces import Table

_METRICS = (
    "mqi",
    "mqi_of_means",
    "mqi_level",
    "mqi_phase_1",
    "mqi_phase_2",
    "mqi_phase_3",
    "mqi_phase_4",
    "mqi_phase_5",
    "mqi_gamma",
    "mqi_not_judged",
    "mqi_unread",
)
_NOTES = (
    "MQI: mean over samples; MQI of means: mean level x baseline tokens / mean tokens.",
    "Phases: share of judged traces that show it; gamma: confidence of the judge against right.",
)


class MQITable(Table):
    """Metacognitive Quality Index by sample and by method, level, and the share of each phase."""

    kind: Literal["mqi"] = "mqi"

    def build(self, inputs: ReportInputs) -> TableData:
        return metric_table(
            inputs,
            name=self.kind,
            title="Metacognitive Quality Index",
            metrics=_METRICS,
            notes=_NOTES,
        )
