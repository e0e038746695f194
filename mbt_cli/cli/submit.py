"""`mbt submit`: the jobs of a plan, on Slurm or on this machine."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import counted, printer
from mbt_cli.engine.local_queue import run_here
from mbt_cli.engine.plan import read_plan
from mbt_cli.engine.states import States
from mbt_cli.engine.submit import (
    Here,
    Submitting,
    check_plan,
    hand_over,
    idle_gpus,
    prepare,
    slurm_preset,
)
from mbt_cli.errors import StageError, UsageError
from mbt_cli.interfaces import Launcher
from mbt_cli.launchers.local import LocalLauncher, free_gpus
from mbt_cli.launchers.slurm import SlurmLauncher, queued, queued_where_reachable
from mbt_cli.manifest.presets import PresetFolders


@dataclass(frozen=True)
class Told:
    """The options of `mbt submit`; `local` is null for Slurm."""

    local: int | None
    preset: str
    dry_run: bool
    script_dir: Path | None
    presets: Path | None

    @property
    def command(self) -> str:
        """As it was typed, so that a hint to one who only looks books nothing."""
        words = ["mbt", "submit"]
        words += (
            ["--local", str(self.local)] if self.local else ["--slurm", "--preset", self.preset]
        )
        words += ["--presets", str(self.presets)] if self.presets else []
        words += ["--script-dir", str(self.script_dir)] if self.script_dir else []
        words += ["--dry-run"] if self.dry_run else []
        return shlex.join(words)


def submit_plan(text: str, where: str, told: Told) -> None:
    """Check a plan, then print, write, submit or run its jobs."""
    plan = read_plan(text, where)
    named = told.presets or (Path(plan.presets) if plan.presets else None)
    manifest, machine = open_manifest(Path(plan.manifest), plan.overrides, named)
    folders = PresetFolders.usual(extra=named or machine.presets, config=machine.config)
    launcher: Launcher = LocalLauncher() if told.local else slurm_preset(told.preset, folders)
    check_plan(plan, manifest, States(manifest, machine.runs), told.command)
    record = told.script_dir.resolve() if told.script_dir else None
    here = Here(machine, record, datetime.now(UTC), _how_called(), told.command)
    hands_over = not (told.local or told.dry_run or told.script_dir)
    queue = queued if hands_over else queued_where_reachable
    submitting = prepare(plan, manifest, folders, here, queue)
    for job in submitting.jobs:
        launcher.render(job)  # what cannot be rendered is said before anything is submitted
    if isinstance(launcher, SlurmLauncher) and (note := idle_gpus(launcher, submitting.jobs)):
        typer.echo(note, err=True)
    out = printer()
    if told.dry_run:
        _show(submitting, launcher)
    elif told.script_dir:
        submitting.keep()
        for job in submitting.jobs:
            out.print(str(submitting.write_script(launcher, job)), markup=False)
    elif not submitting.jobs:
        out.print(_nothing(submitting))
    elif isinstance(launcher, SlurmLauncher):
        _to_slurm(submitting, launcher, out)
    else:
        _here(submitting, told.local or 1, out)


def _show(submitting: Submitting, launcher: Launcher) -> None:
    """Every script after a line that says what it waits for; the count goes to stderr."""
    for job in submitting.jobs:
        after = ", ".join((*job.needs, *submitting.ids_in_queue(job))) or "nothing"
        typer.echo(f"# ---- {job.id}, {counted(len(job.cells), 'cell')}, after {after}")
        typer.echo(launcher.render(job))
    typer.echo(f"{len(submitting.jobs)} scripts shown, nothing submitted", err=True)


def _to_slurm(submitting: Submitting, launcher: SlurmLauncher, out: Console) -> None:
    done = hand_over(submitting, launcher, max_dependencies=launcher.max_dependencies)
    for job in done.jobs:
        after = f" after {', '.join(job.after)}" if job.after else ""
        out.print(
            f"{job.launcher_id}  {job.id}, {counted(len(job.cells), 'cell')}{after}", markup=False
        )
    out.print(
        f"{counted(len(done.jobs), 'job')} submitted; record: {submitting.record}", markup=False
    )
    out.print(f"watch: mbt status {submitting.plan.study} --watch", markup=False)


def _here(submitting: Submitting, at_once: int, out: Console) -> None:
    def note(text: str) -> None:
        out.print(text, markup=False)

    run = run_here(submitting, at_once=at_once, gpus=free_gpus(), note=note)
    if run.failed:
        failed = ", ".join(f"`{name}`" for name in run.failed)
        raise StageError(
            f"{len(run.failed)} jobs failed ({failed}), {len(run.skipped)} that need them did not "
            "run",
            hint=f"mbt status {submitting.plan.study} shows the last lines of their logs",
        )


def _nothing(submitting: Submitting) -> str:
    if submitting.waiting:
        return f"nothing to submit: {len(submitting.waiting)} cells are queued or running already"
    return "nothing to submit: every cell is done"


def _how_called() -> Sequence[str]:
    """This mbt, so that a job runs the same one."""
    called = Path(sys.argv[0])
    found = shutil.which(sys.argv[0]) if called.name == "mbt" else None
    return (str(Path(found).resolve()),) if found else (sys.executable, "-m", "mbt_cli")


def submit(
    plan: Path | None,
    slurm: bool,
    local: int | None,
    *,
    preset: str,
    dry_run: bool,
    script_dir: Path | None,
    presets: Path | None,
) -> None:
    """Read a plan from a file or stdin and submit its jobs.

    Raises:
        UsageError: No place to run is given, or two; or there is no plan.
    """
    if slurm == (local is not None):
        raise UsageError(
            "specify one place to run: `--slurm` or `--local N`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    stream = typer.get_text_stream("stdin")
    if plan is None and stream.isatty():
        raise UsageError("no plan on stdin", hint="mbt plan MANIFEST | mbt submit --slurm")
    where = "stdin" if plan is None else f"`{plan}`"
    if plan is not None and not plan.is_file():
        raise UsageError(f"no file `{plan}`", hint="mbt plan MANIFEST --json > plan.json")
    text = stream.read() if plan is None else plan.read_text(encoding="utf-8")
    submit_plan(text, where, Told(local, preset, dry_run, script_dir, presets))
