"""`mbt report --trace`: the cell, lineage, questions and raw rows behind a number."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import foreign, printer
from mbt_cli.cli.show import lineage_view
from mbt_cli.cli.view import cell_view
from mbt_cli.core.measures import BREAKDOWNS, METADATA
from mbt_cli.core.tables import IS_MEAN, Column, TableData
from mbt_cli.engine.select import select
from mbt_cli.engine.states import States
from mbt_cli.errors import MissingInputError, UsageError
from mbt_cli.interfaces import Judge
from mbt_cli.report.files import read_table
from mbt_cli.report.formats import formatted_rows, heading
from mbt_cli.report.means import cells_of_mean
from mbt_cli.report.traces import TraceCell, read_question_rows, read_traces, trace_cells_below
from mbt_cli.store.cells import cell_folder
from mbt_cli.store.lineage import LINEAGE, Lineage
from mbt_cli.store.reading import (
    finished_cells,
    own_rollouts,
    read_parquet_file,
    read_rows,
    require_lineage,
    upstream,
)

_SHOWN = 10
_SHOWN_WHOLE = 1
_WIDTH = 120
_BOOKKEEPING = ("messages", "reasoning_tokens", "seed", "attempts", "seconds", "request_key")


@dataclass(frozen=True)
class _Number:
    """One number of a table."""

    table: TableData
    row: int
    column: Column

    @property
    def values(self) -> Mapping[str, Any]:
        """The row's raw values."""
        return self.table.rows.row(self.row, named=True)

    @property
    def labels(self) -> list[str]:
        """The row's labels as shown."""
        return _labels(self.table)[self.row]

    @property
    def group(self) -> tuple[str, str] | None:
        """The breakdown and group of the row, if it has one."""
        for name, value in self.values.items():
            if value is not None and (name in BREAKDOWNS or name.startswith(METADATA)):
                return name, str(value)
        return None


def number_views(
    reports: Sequence[Path], study: Path, states: States, table: str, row: str, column: str
) -> Iterator[RenderableType]:
    """Everything behind one number.

    Args:
        reports: Folders of the report cells.
        study: `runs/<study>`.
        states: The states of the manifest's cells.
        table: Name of the table.
        row: Number of the row from 1, or some of its labels separated by `/`.
        column: Key or heading of the column.

    Raises:
        UsageError: There is no such table, row or column; the message lists those that exist.
    """
    data = _table(reports, table)
    number = _Number(data, _row(data, row), _column(data, column))
    yield _headline(number)
    addresses = _addresses(number, study)
    yield from _other_settings(states, addresses)
    for address in addresses:
        yield lineage_view(study / address)
        yield from _rows_behind(number, study, address)


def _table(reports: Sequence[Path], name: str) -> TableData:
    made = [folder for folder in reports if (folder / LINEAGE).is_file()]
    paths = {path.stem: path for folder in made for path in (folder / "files").glob("*.parquet")}
    if name not in paths:
        raise UsageError(f"no table `{name}`; the tables are {_listed(paths)}")
    return read_table(paths[name])


def _row(table: TableData, wanted: str) -> int:
    rows = _labels(table)
    if wanted.isdigit() and 1 <= int(wanted) <= len(rows):
        return int(wanted) - 1
    parts = [part for part in wanted.split("/") if part]
    found = [number for number, labels in enumerate(rows) if parts and set(parts) <= set(labels)]
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"  {n}  {' / '.join(labels)}" for n, labels in enumerate(rows, start=1))
    what = "several rows match" if found else "no row matches"
    raise UsageError(f"{what} `{wanted}` in `{table.name}`; its rows are\n{listed}")


def _column(table: TableData, wanted: str) -> Column:
    numbers = [column for column in table.columns if column.kind == "number"]
    for column in numbers:
        if wanted.casefold() in (column.key, column.title.casefold(), heading(column).casefold()):
            return column
    keys = [column.key for column in numbers]
    raise UsageError(f"no column `{wanted}` in `{table.name}`; the columns are {_listed(keys)}")


def _labels(table: TableData) -> list[list[str]]:
    kinds = [column.kind for column in table.columns]
    return [
        [cell.text for cell, kind in zip(row, kinds, strict=True) if kind == "label"]
        for row in formatted_rows(table)
    ]


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _headline(number: _Number) -> RenderableType:
    cell = formatted_rows(number.table)[number.row][list(number.table.columns).index(number.column)]
    facts = [
        f"{name} {value}"
        for name, value in (
            ("n", cell.n),
            ("failed", cell.failed),
            ("unrounded", number.values.get(number.column.key)),
        )
        if value is not None
    ]
    text = Text(f"{number.table.title}, {' / '.join(number.labels)}\n")
    text.append(f"{heading(number.column)}: {cell.with_interval()}", style="bold")
    return text.append(f"   {', '.join(facts)}")


def _other_settings(states: States, addresses: Sequence[str]) -> Iterator[RenderableType]:
    """What the manifest would make otherwise, of the cells behind a number."""
    gone = [f"  {a}: the manifest no longer has this cell" for a in addresses if a not in states]
    lines = [
        line
        for state in states.made_otherwise(addresses)
        for line in (f"  {state.cell.address}", *(f"    {reason}" for reason in state.why))
    ] + gone
    if lines:
        yield Text("made with other settings than the manifest has now:", style="bold yellow")
        yield Text("\n".join(lines))


def _addresses(number: _Number, study: Path) -> list[str]:
    """The row's cell, those that it is a mean of, or all cells of its stage."""
    address, stage = number.values.get("address"), number.values.get("stage")
    if number.values.get(IS_MEAN):
        return cells_of_mean(number.table, number.row)
    if address is not None:
        if not (study / address / LINEAGE).is_file():
            raise MissingInputError(f"`{address}` is not run yet")
        return [address]
    if stage is not None and (study / stage).is_dir():
        return [cell.address for _, cell in finished_cells(study / stage)]
    raise UsageError(f"the rows of `{number.table.name}` do not name their cells")


def _rows_behind(number: _Number, study: Path, address: str) -> Iterator[RenderableType]:
    folder = study / address
    lineage = require_lineage(folder)
    if lineage.kind != "score":
        frame = read_rows(folder, lineage).drop(_BOOKKEEPING, strict=False)
        yield _frame_view(f"first rows of {folder}/rows.parquet", frame)
        return
    metric = number.column.key
    summary = read_parquet_file(folder, "files/summary.parquet", lineage)
    own = summary.filter(pl.col("metric") == metric).drop("settings")
    yield _frame_view(f"rows of {folder}/files/summary.parquet", _of_group(own, number.group))
    yield from _questions_behind(number, study, lineage)


def _of_group(summary: pl.LazyFrame, group: tuple[str, str] | None) -> pl.LazyFrame:
    if group is None:
        return summary.filter(pl.col("by").is_null())
    return summary.filter(pl.col("by") == group[0], pl.col("group") == group[1])


def _questions_behind(number: _Number, study: Path, score: Lineage) -> Iterator[RenderableType]:
    """The values per question, then the rollouts of the first questions."""
    folder = study / score.address
    values = read_rows(folder, score).filter(pl.col("metric") == number.column.key)
    found = upstream(study, [score.address])
    own = {rollouts.address for rollouts in own_rollouts(found, score)}
    cells = [c for c in trace_cells_below(study, [score.address]) if c.rollouts.address in own]
    for cell in cells:
        if number.group is not None:
            name, wanted = number.group
            asked = read_question_rows(cell).filter(pl.col(name).cast(pl.String) == wanted)
            values = values.join(asked, on="question_id", how="semi")
        yield _frame_view(f"question by question, from {folder}/rows.parquet", values)
        ids = values.select("question_id").head(_SHOWN).collect()["question_id"].to_list()
        yield _rollout_view(cell, ids)
        yield Text("the first of them whole:", style="bold")
        for batch in read_traces(cell, _SHOWN_WHOLE, ids[:_SHOWN_WHOLE] or None):
            for view in cell_view(cell, batch[:_SHOWN_WHOLE]):
                yield Constrain(view, _WIDTH)  # a file has no width
        folder = cell.folder(cell.rollouts)
        yield Text(f"all of them: mbt view --terminal {shlex.quote(str(folder))}", overflow="fold")


def _rollout_view(cell: TraceCell, ids: Sequence[str]) -> RenderableType:
    names = ("question_id", "sample", "answer", "finish_reason", "completion_tokens", "failure")
    table = Table()
    for name in (*names, *cell.judges):
        table.add_column(name, overflow="fold")  # ids may differ only at their end
    judges = cell.judge_plugins
    for batch in read_traces(cell, _SHOWN, ids or None):
        for trace in batch:
            said = [_said(judge, trace.verdicts.get(k, ())) for k, judge in enumerate(judges)]
            table.add_row(*(_short(trace.row[name]) for name in names), *said)
    path = f"{cell.folder(cell.rollouts)}/rows.parquet"
    note = " with verdicts" if cell.judges else ""
    return _titled(f"raw rows of {path}{note}, first {len(ids)} questions", table)


def _said(judge: Judge | None, votes: Sequence[Mapping[str, Any]]) -> Text:
    """The verdicts of one judge on one rollout, in the column of its scale."""
    column = "" if judge is None else judge.verdict_scale().column
    texts = [
        vote["failure"] or ("" if vote.get(column) is None else f"{column} {vote[column]}")
        for vote in votes
    ]
    return _short("; ".join(texts))


def _frame_view(title: str, frame: pl.LazyFrame) -> RenderableType:
    """The first rows as a table; a single row, which is wide, as a list of its values."""
    whole = frame.select(pl.len()).collect().item()
    rows = frame.head(_SHOWN).collect()
    count = f"{whole:,} rows" if whole <= _SHOWN else f"{_SHOWN} of {whole:,} rows"
    if rows.height == 1:
        facts = [f"  {name} {_short(v).plain}" for name, v in rows.row(0, named=True).items()]
        return _titled(title, Text("\n".join(facts)))
    table = Table()
    for name in rows.columns:
        table.add_column(name)
    for row in rows.iter_rows():
        table.add_row(*(_short(value) for value in row))
    return _titled(f"{title} ({count})", table)


def _titled(title: str, what: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold", overflow="fold"), what)


def _short(value: Any) -> Text:
    text = "" if value is None else " ".join(str(value).split())
    return foreign(text if len(text) <= 60 else f"{text[:59]}…")


def trace_number(
    path: Path,
    only: list[str] | None,
    overrides: list[str] | None,
    presets: Path | None,
    trace: tuple[str, str, str],
) -> None:
    """Print the origin of one number of a finished report.

    Args:
        path: The manifest.
        only: Patterns of report cells, as for `--only`.
        overrides: `KEY=VALUE` pairs, as for `--set`.
        presets: Folder of presets that take precedence.
        trace: Table, row and column of the number.
    """
    manifest, machine = open_manifest(path, overrides, presets)
    study = machine.runs / manifest.study
    addresses = select(manifest, kind="report", only=only or ())
    folders = [cell_folder(machine.runs, manifest.study, address) for address in addresses]
    if not any((folder / LINEAGE).is_file() for folder in folders):
        raise MissingInputError("no report exists yet", hint=f"run `mbt run {path}` first")
    out = printer()
    states = States(manifest, machine.runs)
    for view in number_views(folders, study, states, *trace):
        out.print(view, soft_wrap=False)
