"""What `mbt run` and the stage verbs share: choose cells, run them, say what became of them."""

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import counted, printer
from mbt_cli.cli.screen import screen
from mbt_cli.cli.signals import stoppable
from mbt_cli.cli.tables import StoredTable
from mbt_cli.core.addresses import axes_of
from mbt_cli.core.jobs import Shard, parse_shard
from mbt_cli.engine.dry_run import Rehearsal, rehearse
from mbt_cli.engine.execute import Execution, RunOptions, RunReport
from mbt_cli.engine.plan import Unread, unread
from mbt_cli.engine.select import select
from mbt_cli.errors import UsageError
from mbt_cli.manifest.load import Manifest
from mbt_cli.report.files import read_table
from mbt_cli.settings import Machine
from mbt_cli.store.cells import cell_folder

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


def checked_json(manifest: Manifest) -> str:
    """A manifest's stages with their cells and axes, and what nothing reads."""
    stages = []
    for stage, cells in manifest.counts().items():
        of_stage = [c for a, c in manifest.cells.items() if a.partition("/")[0] == stage]
        axes: dict[str, list[str]] = {}
        for cell in of_stage:
            for axis, value in axes_of(cell.address).items():
                values = axes.setdefault(axis, [])
                if value not in values:
                    values.append(value)
        stages.append({"stage": stage, "kind": of_stage[0].kind, "cells": cells, "axes": axes})
    return _text(
        {
            "manifest": str(manifest.path),
            "study": manifest.study,
            "stages": stages,
            "unread": [address for lonely in unread(manifest) for address in lonely.addresses],
            "left_out": list(manifest.left_out),
        }
    )


def rehearsals_json(rehearsals: Sequence[Rehearsal]) -> str:
    """What a dry run tells of each cell."""
    return _text(
        [
            {
                "address": told.address,
                "status": told.status,
                "why": list(told.why),
                "waits_for": told.waits_for,
                "requests": None if told.requests is None else _requests(*told.requests),
                "first_prompt": list(told.first_prompt),
            }
            for told in rehearsals
        ]
    )


def result_json(manifest: Manifest, machine: Machine, report: RunReport) -> str:
    """What a run did, and the tables that it made or had."""
    folders = [
        cell_folder(machine.runs, manifest.study, address) / "files"
        for address in (*report.made, *report.done)
        if manifest.cells[address].kind == "report"
    ]
    return _text(
        {
            "study": manifest.study,
            "folder": str(machine.runs / manifest.study),
            "made": list(report.made),
            "done": list(report.done),
            "requests": {"sent": report.sent, "reused": report.reused},
            "tables": [
                str(path) for folder in folders for path in sorted(folder.glob("*.parquet"))
            ],
        }
    )


def _requests(new: int, reused: int) -> dict[str, int]:
    return {"new": new, "reused": reused}


def _text(document: Any) -> str:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


@dataclass(frozen=True)
class Told:
    """The options of a verb."""

    only: list[str] | None
    overrides: list[str] | None
    dry_run: bool
    replace: bool
    retry_failed: bool
    presets: Path | None
    quiet: bool
    verbose: bool
    shard: Shard | None = None
    as_json: bool = False


def shard_of(text: str | None) -> Shard | None:
    """`3/8` as typed."""
    try:
        return None if text is None else parse_shard(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _shared(manifest: Manifest, addresses: list[str]) -> list[str]:
    """The cells that shards share: questions are no part of that, they are made before."""
    return [a for a in addresses if manifest.cells[a].kind != "questions"]


def _as_typed(path: Path, kind: str | None, told: Told) -> str:
    """The command that goes on with this one: what decides its cells and their settings."""
    is_hidden = Path(sys.argv[0]).name == "mbt" and not shutil.which("mbt")
    called = sys.argv[0] if is_hidden else "mbt"  # `make` calls one that is not on the path yet
    words = [called, kind or "run", str(path)]
    words += [word for cells in told.only or () for word in ("--only", cells)]
    words += [word for key in told.overrides or () for word in ("--set", key)]
    words += ["--presets", str(told.presets)] if told.presets else []
    return shlex.join(words)


def run_cells(path: Path, kind: str | None, told: Told) -> None:
    """Run the cells of one kind, or of all, that are not done."""
    manifest, machine = open_manifest(path, told.overrides, told.presets)
    addresses = select(manifest, kind=kind, only=told.only or ())
    if told.shard is not None:
        addresses = _shared(manifest, addresses)
    out = printer()
    if told.dry_run:
        _tell(out, rehearse(manifest, machine, addresses, retry_failed=told.retry_failed), told)
        return
    execution = Execution(
        manifest, machine, RunOptions(told.replace, told.retry_failed, told.shard)
    )
    with (
        stoppable(_as_typed(path, kind, told)),
        screen(told.quiet, told.verbose) as progress,
    ):
        report = execution.run(addresses, progress)
    if told.as_json:
        out.file.write(f"{result_json(manifest, machine, report)}\n")
        return
    for view in result_view(manifest, machine, report, quiet=told.quiet):
        out.print(view)


def _tell(out: Console, rehearsals: Iterator[Rehearsal], told: Told) -> None:
    """What a dry run found: each cell as soon as it is known, or one document of all."""
    if told.as_json:
        out.file.write(f"{rehearsals_json(list(rehearsals))}\n")
        return
    told_of = []
    for rehearsal in rehearsals:
        out.print(dry_run_view(rehearsal))
        told_of.append(rehearsal)
    out.print(dry_run_total(told_of))
