"""What commands print: manifests, results and lineages as Rich renderables."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mbt_cli.commands.printing import counted
from mbt_cli.commands.table_view import StoredTable
from mbt_cli.manifest.load import Manifest
from mbt_cli.planning.dry_run import Rehearsal
from mbt_cli.planning.execute import RunReport
from mbt_cli.planning.unread import Unread, unread
from mbt_cli.settings import Machine
from mbt_cli.store.cells import cell_folder
from mbt_cli.store.reports import read_table

_SHOWN_PROMPT = 1_500


def stage_counts(manifest: Manifest, notes: Sequence[str]) -> RenderableType:
    """Every stage with its kind, axes and number of cells; then what to know before a run."""
    table = Table(
        title=f"{manifest.path}: study {manifest.study}, no problems", title_justify="left"
    )
    for column in ("stage", "kind", "cells", "axes"):
        table.add_column(column, justify="right" if column == "cells" else "left")
    for stage, cells in manifest.counts().items():
        of_stage = [c for a, c in manifest.cells.items() if a.partition("/")[0] == stage]
        axes: dict[str, set[str]] = {}
        for cell in of_stage:
            for axis, value in cell.resolution.axes.items():
                axes.setdefault(axis, set()).add(value)
        words = " x ".join(f"{axis} {len(values)}" for axis, values in axes.items())
        table.add_row(stage, of_stage[0].kind, str(cells), words)
    lines = [f"nothing reads {_shown_unread(lonely)}" for lonely in unread(manifest)]
    if manifest.left_out:
        count = len(manifest.left_out)
        lines.append(f"{count} optional cells are left out: their source is not there")
    return Group(table, *(Text(line, style="yellow") for line in (*lines, *notes)))


def _shown_unread(lonely: Unread) -> str:
    count = f"{len(lonely.addresses)} of {lonely.of} cells of {lonely.stage}"
    return f"{count}: {', '.join(lonely.apart)}" if lonely.apart else count


def dry_run_view(rehearsal: Rehearsal) -> RenderableType:
    """One cell: its status, its requests, its first prompt."""
    head = Text(overflow="fold")  # what a narrow terminal cannot show in one line is not lost
    head.append(rehearsal.address, "bold").append(f": {rehearsal.status}")
    lines: list[RenderableType] = [head]
    lines.extend(Text(f"  {reason}", style="yellow") for reason in rehearsal.why)
    if rehearsal.waits_for:
        lines.append(Text(f"  waits for {rehearsal.waits_for}"))
    elif rehearsal.requests is not None:
        new, reused = rehearsal.requests
        lines.append(Text(f"  {new:,} requests new, {reused:,} reused"))
    for message in rehearsal.first_prompt:
        text = message["content"]
        short = text if len(text) <= _SHOWN_PROMPT else f"{text[:_SHOWN_PROMPT]} ..."
        lines.append(Text(f"  --- {message['role']}\n{short}", style="dim"))
    return Group(*lines)


def dry_run_total(rehearsals: Sequence[Rehearsal]) -> RenderableType:
    """All cells in one line: how many in each state, and the requests that are known."""
    states = Counter(rehearsal.status for rehearsal in rehearsals)
    counts = ", ".join(f"{count} {status}" for status, count in states.items())
    known = [rehearsal.requests for rehearsal in rehearsals if rehearsal.requests]
    new, reused = (sum(numbers) for numbers in zip((0, 0), *known, strict=True))
    waiting = sum(rehearsal.waits_for is not None for rehearsal in rehearsals)
    more = f", and those of {waiting} cells that wait for others" if waiting else ""
    cells = "1 cell" if len(rehearsals) == 1 else f"{len(rehearsals)} cells"
    return Text(f"{cells}: {counts}; {new:,} requests new, {reused:,} reused{more}")


def result_view(
    manifest: Manifest, machine: Machine, report: RunReport, *, quiet: bool
) -> Iterator[RenderableType]:
    """The tables that a run made or had, and where everything lies."""
    tables = [a for a in (*report.made, *report.done) if manifest.cells[a].kind == "report"]
    folders = [cell_folder(machine.runs, manifest.study, a) / "files" for a in tables]
    for folder in folders:
        for path in sorted(folder.glob("*.parquet")):
            yield StoredTable(read_table(path))
    if quiet:
        return
    counts = f"{counted(len(report.made), 'cell')} made, {len(report.done)} done already"
    asked = f"{report.sent:,} model calls, {report.reused:,} replies reused"
    yield Text(f"{counts}; {asked}")
    for folder in folders or [machine.runs / manifest.study]:
        yield Text(f"written: {folder}/", no_wrap=True, overflow="ignore")
