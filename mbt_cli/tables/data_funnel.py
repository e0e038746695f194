"""Data funnel: how many rows each step on the way to training data kept."""

from typing import Literal

from mbt_cli.core.cell_notes import funnel_rows
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table


class DataFunnel(Table):
    """One row a cell and step: rollouts, kept, traces, passed the gates, trained."""

    kind: Literal["data_funnel"] = "data_funnel"

    def build(self, inputs: ReportInputs) -> TableData:
        return TableData(
            name=self.kind,
            title="Data funnel",
            columns=[
                Column("address", "cell", kind="label"),
                Column("step", "step", kind="label"),
                Column("count", "count", decimals=0),
                Column("of_previous", "of the step before", unit="percent"),
                Column("of_first", "of the first step", unit="percent"),
            ],
            rows=funnel_rows(inputs.cells),
        )
