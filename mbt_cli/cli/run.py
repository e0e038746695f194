"""`mbt run`, `mbt merge` and the stage verbs: choose cells, run them, print the result."""

import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from mbt_cli.cli.file_systems import one_machine_locks
from mbt_cli.cli.manifests import open_manifest, warnings_of
from mbt_cli.cli.printing import printer
from mbt_cli.cli.screen import screen
from mbt_cli.cli.signals import stoppable
from mbt_cli.cli.tables import StoredTable
from mbt_cli.core.jobs import parse_shard
from mbt_cli.core.number_text import counted
from mbt_cli.engine.beside import (
    BESIDE,
    PROCESSES,
    VISIBLE,
    WatchedBeside,
    divided_gpus,
    trained_first,
    watched_beside,
)
from mbt_cli.engine.dry_run import DryRun, check_complete, dry_run
from mbt_cli.engine.mirroring import brought_down, mirroring
from mbt_cli.engine.run_records import recording
from mbt_cli.engine.runner import Runner, RunOptions, RunReport, joined
from mbt_cli.engine.select import select
from mbt_cli.errors import UsageError
from mbt_cli.manifest.load import Manifest
from mbt_cli.report.files import read_table, table_files
from mbt_cli.settings import Machine
from mbt_cli.stages.questions import QUESTIONS
from mbt_cli.store.cells import FILES, cell_folder

_SHOWN_PROMPT = 1_500
_END_SECONDS = 60.0
"""Time that a watch beside a run has to end after a signal."""


@dataclass(frozen=True)
class CommandOptions:
    """The options that the running verbs share, as typed."""

    only: list[str] | None
    overrides: list[str] | None
    dry_run: bool
    replace: bool
    retry_failed: bool
    presets: Path | None
    quiet: bool
    verbose: bool
    as_json: bool = False
    no_cache: bool = False
    shard: str | None = None
    keep_going: bool = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise UsageError("`--quiet` and `--verbose` exclude each other", hint="leave one out")


def run_cells(path: Path, kind: str | None, options: CommandOptions) -> None:
    """Run the unfinished cells of one kind, or of all kinds, and print the result.

    Args:
        path: The manifest.
        kind: Kind of stage, such as `rollout`; None runs all.
        options: The options of the command.
    """
    try:
        shard = None if options.shard is None else parse_shard(options.shard)
    except ValueError as error:
        raise UsageError(str(error)) from None
    manifest, machine = open_manifest(path, options.overrides, options.presets)
    choose = partial(select, kind=kind, only=options.only or ())
    say = partial(typer.echo, err=True)
    if not options.dry_run:
        manifest = brought_down(manifest, machine, choose, say)
    addresses = choose(manifest)
    for line in () if options.quiet else warnings_of(manifest):
        typer.echo(line, err=True)
    if shard is not None:  # questions are shared by all shards, so they exist before
        addresses = [a for a in addresses if manifest.cells[a].kind != QUESTIONS]
    chosen = RunOptions(
        options.replace, options.retry_failed, shard, options.keep_going, options.no_cache
    )
    if options.dry_run:
        found = dry_run(manifest, machine, addresses, chosen)
        _print_dry_run(found, as_json=options.as_json)
        return
    runner = Runner(manifest, machine, chosen)
    if not options.quiet and (why := one_machine_locks(machine.runs)) is not None:
        typer.echo(f"warning: {machine.runs}: {why}; run a cell on one machine at a time", err=True)
    with (
        mirroring(manifest, machine, say),
        recording(manifest, machine, runner, shlex.join(["mbt", *sys.argv[1:]])),
        stoppable(_resume_command(path, kind, options)),
        screen(options.quiet, options.verbose) as progress,
    ):
        trained = RunReport([], [], 0, 0)
        if shard is None and (watched := watched_beside(manifest, addresses)) is not None:
            first = trained_first(manifest, runner.states, addresses)
            runner.check(addresses)
            with watching(path, watched, options, machine) if first else nullcontext():
                trained = runner.run(first, progress)
            runner.follow_steps()
            addresses = choose(runner.manifest)
        report = joined(trained, runner.run(addresses, progress, None if shard else choose))
    out, manifest = printer(), runner.manifest
    if options.as_json:
        typer.echo(result_json(manifest, machine, report))
        return
    for view in result_view(manifest, machine, report, quiet=options.quiet):
        out.print(view)


@contextmanager
def watching(
    path: Path, watched: WatchedBeside, options: CommandOptions, machine: Machine
) -> Iterator[None]:
    """Evaluate in another process while the context runs, and to the end of what is there.

    Raises:
        UsageError: The GPUs for the evaluations are not among those at hand.
    """
    environment, before = {**os.environ, BESIDE: str(os.getpid())}, os.environ.get(VISIBLE)
    processes = os.environ.get(PROCESSES)
    if watched.gpus:
        own, others = divided_gpus(watched.gpus, machine.environment)
        environment[VISIBLE] = others
        os.environ[VISIBLE] = own
        if processes is not None:  # a job has one for each of its GPUs
            os.environ[PROCESSES] = str(own.count(",") + 1)
    words = [sys.executable, "-m", "mbt_cli", "watch", str(path)]
    words += [word for stage in watched.stages for word in ("--only", stage)]
    words += [word for key in options.overrides or () for word in ("--set", key)]
    words += ["--presets", str(options.presets)] if options.presets else []
    words += ["--replace"] if options.replace else []
    words += ["--no-cache"] if options.no_cache else []
    words += ["--quiet"] if options.quiet or options.as_json else []
    process = subprocess.Popen(words, env=environment, stdout=sys.stderr)
    try:
        yield
        process.wait()  # it ends when it has made what the training published
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if watched.gpus:
            os.environ.pop(VISIBLE)
            if before is not None:
                os.environ[VISIBLE] = before
            if processes is not None:
                os.environ[PROCESSES] = processes


def merge_shards(path: Path, options: CommandOptions) -> None:
    """Write the rows of cells whose shards have all run."""
    manifest, machine = open_manifest(path, options.overrides, options.presets)
    check_complete(manifest, machine, select(manifest, kind=None, only=options.only or ()))
    run_cells(path, None, options)


def _resume_command(path: Path, kind: str | None, options: CommandOptions) -> str:
    """The command that resumes this one: same cells, same settings."""
    is_hidden = Path(sys.argv[0]).name == "mbt" and not shutil.which("mbt")
    program = sys.argv[0] if is_hidden else "mbt"  # `make` runs an mbt that is not on the PATH
    words = [program, kind or "run", str(path)]
    words += [word for cells in options.only or () for word in ("--only", cells)]
    words += [word for key in options.overrides or () for word in ("--set", key)]
    words += ["--presets", str(options.presets)] if options.presets else []
    words += ["--replace"] if options.replace else []
    words += ["--keep-going"] if options.keep_going else []
    words += ["--no-cache"] if options.no_cache else []
    return shlex.join(words)


def _print_dry_run(cells: Iterator[DryRun], *, as_json: bool) -> None:
    """Print each cell as soon as it is known, or one JSON document."""
    out = printer()
    if as_json:
        typer.echo(dry_runs_json(list(cells)))
        return
    shown = []
    for cell in cells:
        out.print(dry_run_view(cell))
        shown.append(cell)
    out.print(dry_run_total(shown))


def dry_run_view(cell: DryRun) -> RenderableType:
    """One cell: status, requests, first prompt."""
    head = Text(overflow="fold")  # wraps on a narrow terminal instead of being cut
    head.append(cell.address, "bold").append(f": {cell.status}")
    lines: list[RenderableType] = [head]
    lines.extend(Text(f"  {reason}", style="yellow") for reason in cell.why)
    if cell.waits_for:
        lines.append(Text(f"  waits for {cell.waits_for}"))
    elif cell.requests is not None:
        new, reused = cell.requests
        first = " (first requests: later ones follow from the replies)" if cell.goes_on else ""
        lines.append(Text(f"  {new:,} requests new, {reused:,} reused{first}"))
    for message in cell.first_prompt:
        text = message["content"]
        short = text if len(text) <= _SHOWN_PROMPT else f"{text[:_SHOWN_PROMPT]} ..."
        lines.append(Text(f"  --- {message['role']}\n{short}", style="dim"))
    return Group(*lines)


def dry_run_total(cells: Sequence[DryRun]) -> RenderableType:
    """All cells in one line: the count of each state, and the known requests."""
    states = Counter(cell.status for cell in cells)
    counts = ", ".join(f"{count} {status}" for status, count in states.items())
    known = [cell.requests for cell in cells if cell.requests]
    new, reused = (sum(numbers) for numbers in zip((0, 0), *known, strict=True))
    waiting = sum(cell.waits_for is not None for cell in cells)
    more = f", and those of {waiting} cells that wait for inputs" if waiting else ""
    total = counted(len(cells), "cell")
    if any(cell.goes_on and cell.requests for cell in cells):
        more += "; of programs only the requests that are known now"
    return Text(f"{total}: {counts}; {new:,} requests new, {reused:,} reused{more}")


def result_view(
    manifest: Manifest, machine: Machine, report: RunReport, *, quiet: bool
) -> Iterator[RenderableType]:
    """The tables of a run, its counts and its folder."""
    tables = [a for a in (*report.made, *report.done) if manifest.cells[a].kind == "report"]
    cells = [cell_folder(machine.runs, manifest.study, a) for a in tables]
    folders = [cell / FILES for cell in cells]
    for path in (path for cell in cells for path in table_files(cell)):
        yield StoredTable(read_table(path))
    if quiet:
        return
    counts = f"{counted(len(report.made), 'cell')} run, {len(report.done)} already done"
    asked = f"{report.sent:,} model calls, {report.reused:,} replies reused"
    yield Text(f"{counts}; {asked}")
    for folder in folders or [machine.runs / manifest.study]:
        yield Text(f"written: {folder}/", no_wrap=True, overflow="ignore")


def dry_runs_json(cells: Sequence[DryRun]) -> str:
    """The cells of a dry run as JSON."""
    return _text(
        [
            {
                "address": cell.address,
                "status": cell.status,
                "why": list(cell.why),
                "waits_for": cell.waits_for,
                "requests": None if cell.requests is None else _requests(*cell.requests),
                "goes_on": cell.goes_on,
                "first_prompt": list(cell.first_prompt),
            }
            for cell in cells
        ]
    )


def result_json(manifest: Manifest, machine: Machine, report: RunReport) -> str:
    """The result of a run and its tables as JSON."""
    reports = [
        cell_folder(machine.runs, manifest.study, address)
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
            "tables": [str(path) for cell in reports for path in table_files(cell)],
        }
    )


def _requests(new: int, reused: int) -> dict[str, int]:
    return {"new": new, "reused": reused}


def _text(document: Any) -> str:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
