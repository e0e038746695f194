"""Report: tables, figures and a page from every score of the study."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import Grows
from mbt_cli.core.prices import PICOS, Price, money_text
from mbt_cli.core.tables import (
    CELLS,
    SPENDING,
    STAGE,
    ReportInputs,
    TableData,
    beside_benchmarks,
)
from mbt_cli.errors import UsageError
from mbt_cli.registry import BACKENDS, SCORES, AnyFigure, AnyTable
from mbt_cli.report.comparisons import Comparisons, compared_methods
from mbt_cli.report.cost_table import Cost
from mbt_cli.report.files import write_tables
from mbt_cli.report.metrics import METRIC_NAMES, harness_cells
from mbt_cli.report.page import PageInputs, write_page
from mbt_cli.report.references import (
    is_shipped,
    lines_without_number,
    read_reference,
    reference_file,
    reference_problems,
    with_reference,
)
from mbt_cli.report.seeds import merged_seeds
from mbt_cli.stages.base import InputRule, LoadedInput, Resolution, Stage, StageInput, Work
from mbt_cli.stages.contamination import shared_questions
from mbt_cli.store.cells import published_steps
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.reading import finished_cells, read_parquet_file
from mbt_cli.store.spending import SpendingReader, Spent, earlier_spending

_ROWS = pl.Schema({"table": pl.String(), "rows": pl.Int64()})
_SUMMARY = "files/summary.parquet"


class ReportStage(Stage):
    """Make tables, figures and an HTML page from scores."""

    version: ClassVar[int] = 3
    kind: Literal["report"] = "report"
    scores: StageInput
    """Score and harness stages to report. Default: all before this one."""
    tables: Annotated[list[AnyTable], Grows]
    """Tables to make, each by name or as a TOML table with settings. Default: `main_results`."""
    figures: Annotated[list[AnyFigure], Grows] = Field(default_factory=list)
    """Figures to make, each by name or as a TOML table with settings."""
    reference: str | None = None
    """CSV file with published numbers, shown next to those of the study, or the name of a shipped
    one; its content counts."""
    intervals: bool = True
    """Whether the CSV and LaTeX files have intervals and marks of significance; the others do."""
    traces: Annotated[int, Field(ge=0)] | Literal["all", "auto"] = "auto"
    """Traces per rollout cell on the page, in the order of the questions; `auto` divides 10,000
    among the cells, 0 shows none."""

    summary: ClassVar[str] = "make the tables and figures"
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "scores": InputRule(kinds=("score", "harness"), many=True, partial=True)
    }

    def files_read(self) -> Mapping[str, Path]:
        return {} if self.reference is None else {"reference": reference_file(self.reference)}

    def axis_problems(self, axes: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        if self.reference is not None:
            metrics = {*SCORES.kinds(), *METRIC_NAMES, *axes.get("metric", ())}
            for what in reference_problems(reference_file(self.reference), axes, metrics):
                yield "reference", what

    def columns(self, resolution: Resolution) -> pl.Schema:
        return _ROWS

    def outdated(self, notes: Mapping[str, Json], resolution: Resolution) -> str | None:
        is_outdated = self._shows_cost() and notes.get(_PRICES) != _priced(resolution)
        return "prices have changed" if is_outdated else None

    def _shows_cost(self) -> bool:
        return any(isinstance(table, Cost) for table in self.tables)

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        inputs = merged_seeds(report_inputs(work))
        if self._shows_cost():
            work.result.notes[_PRICES] = _priced(work.resolution)
        built = [table.build(inputs) for table in self.tables]
        beside = self._beside_reference(built, inputs, work)
        shown = _noted(beside, work.inputs.get("scores", ()), _shared_questions(work))
        write_tables(work.files, shown, intervals=self.intervals)
        captions = {}
        for figure in self.figures:
            drawn = figure.draw(inputs, work.files)
            if not drawn:
                work.progress.note(f"no figure `{figure.kind}`: no score has its data")
            words = " ".join((type(figure).__doc__ or "").split("\n\n")[0].split())
            told = (figure.title or figure.kind.replace("_", " ").capitalize(), words)
            captions.update(dict.fromkeys((path.stem for path in drawn), told))
        write_page(work.files, replace(self._page_inputs(work, inputs, shown), captions=captions))
        counts = [{"table": table.name, "rows": table.rows.height} for table in built]
        yield pl.DataFrame(counts, schema=_ROWS)

    def _page_inputs(self, work: Work, inputs: ReportInputs, tables: list[TableData]) -> PageInputs:
        found = work.resolution
        return PageInputs(
            study=found.study,
            address=found.address,
            study_folder=work.study_folder,
            scores=[cell.address for cell in work.inputs.get("scores", ())],
            missing=inputs.missing,
            tables=tables,
            manifest=found.manifest,
            manifest_name=found.manifest_name,
            comparisons=_comparisons(work, inputs, tables),
            traces=self.traces,
            money=_spent(inputs),
        )

    def _beside_reference(
        self, built: list[TableData], inputs: ReportInputs, work: Work
    ) -> list[TableData]:
        if self.reference is None:
            return built
        path = reference_file(self.reference)
        published = read_reference(path)
        metric_tables = [t for k, t in zip(self.tables, built, strict=True) if k.shows_metrics]
        left = lines_without_number(published, metric_tables, inputs.axes)
        if left and not (is_shipped(path) and len(left) < published.height):
            listed = ", ".join(str(line) for line in left)
            work.progress.note(f"`{self.reference}`: no table has the numbers of lines {listed}")
        work.result.notes["reference"] = {"file": self.reference, "lines_without_number": left}
        try:
            return [
                with_reference(table, published, inputs.axes) if kind.shows_metrics else table
                for kind, table in zip(self.tables, built, strict=True)
            ]
        except ValueError as error:
            raise UsageError(f"`{self.reference}`: {error}") from None


_PRICES = "prices"


def _priced(resolution: Resolution) -> dict[str, Json]:
    """The prices of a study, as a report's notes have them."""
    # the price of a training is an entry of its own
    prices = {
        name: price.model_dump(exclude={"training"})
        for name, price in sorted(resolution.prices.items())
    }
    return {"currency": resolution.currency, "models": prices}


def study_spending(study_folder: Path, prices: Mapping[str, Price]) -> pl.DataFrame:
    """`SPENDING` of a study, in the order in which requests were sent.

    Raises:
        ArtifactError: A record or a lineage is damaged.
    """
    records = SpendingReader(study_folder).read()
    records = [*earlier_spending(study_folder, {one.address for one in records}), *records]
    sums: dict[tuple[str, str], Spent] = {}
    for one in records:
        before = sums.get((one.address, one.model))
        sums[one.address, one.model] = one if before is None else before.joined(one)
    found = [
        {
            "address": one.address,
            "model": one.model,
            "requests": one.used.requests,
            "input": one.used.input,
            "cached": one.used.cached,
            "output": one.used.output,
            "money": one.known(prices) / PICOS if one.model in prices else None,
            "at_most": one.cost(prices) / PICOS if one.model in prices else None,
        }
        for one in sums.values()
    ]
    return pl.DataFrame(found, schema=SPENDING)


_RESAMPLES = 10_000


def _comparisons(
    work: Work, inputs: ReportInputs, tables: Sequence[TableData]
) -> Comparisons | None:
    """Every two methods in the metrics of the tables, with the settings of the first score."""
    shown = [c.key for table in tables for c in table.columns if c.kind == "number"]
    scored = [cell for cell in work.inputs.get("scores", ()) if cell.kind == "score"]
    lineages = [cell.lineage for cell in scored if cell.lineage is not None]
    if not lineages:  # harnesses alone, whose numbers have no values per question
        return None
    spec = lineages[0].spec
    others = harness_cells(inputs)
    inputs = replace(
        inputs,
        summary=inputs.summary.filter(~pl.col("address").is_in(pl.Series(others, dtype=pl.String))),
        missing=[a for a in inputs.missing if _stage_of(a) not in set(map(_stage_of, others))],
    )
    return compared_methods(
        inputs,
        list(dict.fromkeys(shown)),
        resamples=spec.get("resamples", _RESAMPLES),
        seed=spec.get("seed", 0),
    )


_PAIRS_SHOWN = 5


def _stage_of(address: str) -> str:
    return address.partition("/")[0]


def _shared_questions(work: Work) -> list[str]:
    """What the finished questions of training and evaluation share."""
    trained, evaluated = (
        {one: work.study_folder / one for one in group if (work.study_folder / one).is_dir()}
        for group in (work.resolution.trained, work.resolution.evaluated)
    )
    found = [str(one).replace("`", "") for one in shared_questions(trained, evaluated)]
    found = [f"{one[:1].upper()}{one[1:]}." for one in found]
    left_out = len(found) - _PAIRS_SHOWN
    more = (
        [f"Contamination: {left_out} more pairs of cells; see mbt check."] if left_out > 0 else []
    )
    return [*found[:_PAIRS_SHOWN], *more]


def _noted(
    tables: list[TableData], scores: Sequence[LoadedInput], of_study: Sequence[str]
) -> list[TableData]:
    """The tables; notes on the study below the first, and on cells made otherwise below all."""
    otherwise = {address: why for cell in scores for address, why in cell.made_otherwise.items()}
    notes = []
    if otherwise:
        address, why = next(iter(otherwise.items()))
        cells = "1 cell was" if len(otherwise) == 1 else f"{len(otherwise)} cells were"
        notes = [
            f"{cells} made with other settings than the manifest has now, such as {address} "
            f"({'; '.join(why).replace('`', '')})."
        ]
    return [
        replace(table, notes=[*table.notes, *(of_study if table is tables[0] else ()), *notes])
        for table in tables
    ]


def report_inputs(work: Work) -> ReportInputs:
    """Every score cell's summary and rows, with the axes as text columns."""
    finished = work.inputs.get("scores", ())
    missing = sorted(set(work.resolution.inputs["scores"]) - {cell.address for cell in finished})
    cells = _told_apart(finished, missing)
    axes = list(dict.fromkeys(axis for cell in cells for axis in cell.axes))
    notes = [cell.lineage.notes for cell in cells if cell.lineage is not None]
    return ReportInputs(
        summary=pl.concat([_summary(cell, axes) for cell in cells]).collect(),
        scores=pl.concat([_with_axes(_scores(cell), cell, axes) for cell in cells], how="diagonal"),
        axes=axes,
        missing=missing,
        toy_judges=_toy_judges(notes),
        cells=study_cells(work.study_folder),
        related_judges=[str(pair) for pair in work.resolution.related_judges],
        spending=study_spending(work.study_folder, work.resolution.prices),
        currency=work.resolution.currency,
    )


def _spent(inputs: ReportInputs) -> str:
    """What the requests of the study have cost, as text; empty where no price is known."""
    money = inputs.spending["money"].drop_nulls()
    return money_text(round(money.sum() * PICOS), inputs.currency) if len(money) else ""


def _scores(cell: LoadedInput) -> pl.LazyFrame:
    """The values per question; a harness tells of none."""
    return cell.rows if cell.kind == "score" else pl.LazyFrame(schema=rows.SCORES)


def _told_apart(cells: Sequence[LoadedInput], missing: Sequence[str]) -> list[LoadedInput]:
    """The cells with all axes of their rollouts, and with their stage where these are not enough.

    A `where` takes an axis out of a score's address: two stages that score two prompts would have
    the same labels.
    """
    whole = [replace(cell, axes={**_axes_of_rollouts(cell), **cell.axes}) for cell in cells]
    others: list[Mapping[str, str]] = [axes_of(address) for address in missing]
    if any("benchmark" in axes for axes in (*(c.axes for c in whole), *others)):
        whole = [replace(cell, axes=beside_benchmarks(cell.axes)) for cell in whole]
        others = [beside_benchmarks(axes) for axes in others]
    seen = [tuple(sorted(axes.items())) for axes in (*(c.axes for c in whole), *others)]
    if len(set(seen)) == len(seen):
        return whole
    return [replace(c, axes={STAGE: c.address.partition("/")[0], **c.axes}) for c in whole]


def _axes_of_rollouts(cell: LoadedInput) -> Mapping[str, str]:
    reads = {} if cell.lineage is None else cell.lineage.notes.get("reads", {})
    return axes_of(reads["rollouts"][0]) if reads.get("rollouts") else {}


def _toy_judges(notes: Sequence[Mapping[str, Any]]) -> list[str]:
    labels = {backend.toy_label for backend in BACKENDS.kinds().values() if backend.toy_label}
    natures = {name: nature for note in notes for name, nature in note["models"].items()}
    judges = {name for note in notes for name in note["judge_models"]}
    return sorted(name for name in judges if natures.get(name) in labels)


def _summary(cell: LoadedInput, axes: list[str]) -> pl.LazyFrame:
    if cell.lineage is None:
        return _with_axes(pl.scan_parquet(cell.folder / _SUMMARY, glob=False), cell, axes)
    return _with_axes(read_parquet_file(cell.folder, _SUMMARY, cell.lineage), cell, axes)


def _with_axes(frame: pl.LazyFrame, cell: LoadedInput, axes: list[str]) -> pl.LazyFrame:
    columns = [pl.lit(cell.axes.get(axis), pl.String).alias(axis) for axis in axes]
    return frame.with_columns(pl.lit(cell.address).alias("address"), *columns)


def _published(study_folder: Path, lineage: Lineage) -> Sequence[int]:
    if lineage.kind != "train":  # others have no checkpoints: their folders are not listed
        return ()
    return published_steps(study_folder.parent, study_folder.name, lineage.address)


def study_cells(study_folder: Path) -> pl.DataFrame:
    """`CELLS` of every finished cell below `runs/<study>`, stages in the order they ran.

    Raises:
        ArtifactError: A lineage is damaged or has an unknown layout.
    """
    lineages = [lineage for _, lineage in finished_cells(study_folder)]
    lineages.sort(key=lambda lineage: (lineage.started_at, lineage.address))
    cells = [
        {
            "address": lineage.address,
            "stage": lineage.stage,
            "kind": lineage.kind,
            "rows": lineage.rows,
            "failed_rows": lineage.failed_rows,
            "prompt_tokens": lineage.tokens.prompt,
            "completion_tokens": lineage.tokens.completion,
            "reasoning_tokens": lineage.tokens.reasoning,
            "sent": lineage.requests.sent,
            "retried": lineage.requests.retried,
            "reused": lineage.requests.reused,
            "failed_requests": lineage.requests.failed,
            "seconds": lineage.seconds,
            "notes": orjson.dumps(lineage.notes).decode(),
            "published": _published(study_folder, lineage),
        }
        for lineage in lineages
    ]
    return pl.DataFrame(cells, schema=CELLS)
