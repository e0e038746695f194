"""Report: the paper's tables and figures from every score of the study."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import polars as pl

from mbt_cli.core.tables import ReportInputs
from mbt_cli.registry import AnyTable
from mbt_cli.stages.base import InputRule, Stage, StageInput
from mbt_cli.stages.work import LoadedInput, Resolution, Work
from mbt_cli.store.reports import write_tables

_ROWS = pl.Schema({"table": pl.String(), "rows": pl.Int64()})


class ReportStage(Stage):
    """Make tables and figures from score artifacts."""

    kind: Literal["report"] = "report"
    scores: StageInput
    """Score stages that the tables are made from."""
    tables: list[AnyTable]
    """Names of tables, or tables with a name's settings."""
    reference: str | None = None
    """File with published numbers that stand beside ours."""

    summary: ClassVar[str] = "print the tables and figures"
    inputs: ClassVar[Mapping[str, InputRule]] = {"scores": InputRule(kinds=("score",), many=True)}

    def columns(self, resolution: Resolution) -> pl.Schema:
        return _ROWS

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        inputs = report_inputs(work)
        built = [table.build(inputs) for table in self.tables]
        write_tables(work.files, built)
        counts = [{"table": table.name, "rows": table.rows.height} for table in built]
        yield pl.DataFrame(counts, schema=_ROWS)


def report_inputs(work: Work) -> ReportInputs:
    """Every score cell's summary and rows, with the axes as string columns."""
    cells = work.inputs.get("scores", ())
    axes = list(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    summaries = [
        _with_axes(pl.scan_parquet(cell.folder / "files" / "summary.parquet"), cell, axes)
        for cell in cells
    ]
    scores = [_with_axes(cell.rows, cell, axes) for cell in cells]
    return ReportInputs(
        summary=pl.concat(summaries).collect() if summaries else pl.DataFrame(),
        scores=pl.concat(scores) if scores else pl.LazyFrame(),
        axes=axes,
    )


def _with_axes(frame: pl.LazyFrame, cell: LoadedInput, axes: list[str]) -> pl.LazyFrame:
    columns = [pl.lit(cell.axes.get(axis), pl.String).alias(axis) for axis in axes]
    return frame.with_columns(pl.lit(cell.address).alias("address"), *columns)
