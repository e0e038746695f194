"""Tokens by stage: what each stage asked for, got, and took."""

from typing import Literal

import polars as pl

from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table

_SUMS = (
    "rows",
    "failed_rows",
    "sent",
    "retried",
    "reused",
    "prompt_tokens",
    "completion_tokens",
)
_NOTES = (
    "Tokens are those of the rows that were kept; a reply that was asked again counts once.",
    "Hours: time of the last run of each cell, added up; cells that ran at once overlap.",
)


class TokensByStage(Table):
    """One row a stage: cells, rows, failures, requests, tokens and hours."""

    kind: Literal["tokens_by_stage"] = "tokens_by_stage"

    def build(self, inputs: ReportInputs) -> TableData:
        cells = inputs.cells
        stages = cells.group_by("stage", "kind", maintain_order=True)
        rows = stages.agg(
            pl.len().cast(pl.Int64).alias("cells"),
            *(pl.col(name).sum() for name in _SUMS),
            (pl.col("seconds").sum() / 3600).alias("hours"),
        ).rename({"kind": "stage_kind"})
        counts = [Column(name, name.replace("_", " "), decimals=0) for name in ("cells", *_SUMS)]
        return TableData(
            name=self.kind,
            title="Tokens by stage",
            columns=[
                Column("stage", "stage", kind="label"),
                Column("stage_kind", "kind", kind="label"),
                *counts,
                Column("hours", "hours", decimals=2),
            ],
            rows=rows,
            notes=_NOTES,
        )
