"""`mbt submit`: submit the jobs of a plan to a launcher."""

import shlex
import shutil
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import typer

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import printer
from mbt_cli.core.number_text import counted
from mbt_cli.engine.plan import read_plan
from mbt_cli.engine.states import States
from mbt_cli.engine.submit import (
    NewSubmission,
    SubmittedJob,
    check_plan,
    load_launcher,
    prepare,
)
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Launcher
from mbt_cli.manifest.presets import PresetFolders

_PAUSE_SECONDS = 60.0
"""Between two attempts to submit to a queue that is full."""


def submit(
    path: Path | None,
    launcher: str,
    option: list[str],
    *,
    at_once: int | None,
    preset: str,
    build: bool,
    here: bool,
    dry_run: bool,
    script_dir: Path | None,
    wait: bool,
    presets: Path | None,
) -> None:
    """Check a plan, then show, write or submit its jobs.

    Args:
        path: The plan; None reads stdin.
        launcher: Kind of the launcher.
        option: How the user named it, for hints.
        at_once: Jobs that run at the same time, for a launcher with that setting.
        preset: Name of the launcher's preset.
        build: Make the image of its containers first.
        here: Run its containers on this machine.
        dry_run: Print the scripts only.
        script_dir: Write the scripts there only.
        wait: Wait while the queue is full.
        presets: Folder with presets.

    Raises:
        UsageError: There is no plan, or it is not up to date.
    """
    text, where = _read(path)
    plan = read_plan(text, where)
    named = presets or (Path(plan.presets) if plan.presets else None)
    manifest, machine = open_manifest(Path(plan.manifest), plan.overrides, named)
    folders = PresetFolders.usual(extra=named or machine.presets, config=machine.config)
    settings = {"at_once": at_once} if at_once else {}
    target = load_launcher(launcher, preset, folders, settings)
    if here:
        target = _here(target)
    words = ["mbt", "submit", *option]
    words += ["--preset", preset] if target.has_presets and preset not in option else []
    words += ["--here"] if here else []
    words += ["--presets", str(presets)] if presets else []
    words += ["--script-dir", str(script_dir)] if script_dir else []
    words += ["--dry-run"] if dry_run else []
    typed = shlex.join(words)
    check_plan(plan, where, manifest, States(manifest, machine.runs), typed)
    called = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "mbt" else None
    submission = prepare(
        *(plan, manifest, folders, target, machine),
        record=script_dir.resolve() if script_dir else None,
        now=datetime.now(UTC),
        mbt=(str(Path(called).resolve()),) if called else (sys.executable, "-m", "mbt_cli"),
        submit=typed,
        submits=not (dry_run or script_dir),
    )
    for job in submission.jobs:
        submission.script(job)  # a job without a script is an error before any is submitted
    for line in target.notes(submission.jobs):
        typer.echo(line, err=True)
    out = printer()
    if build and not (dry_run or script_dir):
        target.build_image(lambda line: typer.echo(line, err=True))
    if dry_run:
        for job in submission.jobs:
            after = ", ".join((*job.needs, *submission.queued_needs(job))) or "nothing"
            typer.echo(f"# ---- {job.id}, {counted(len(job.cells), 'cell')}, after {after}")
            typer.echo(submission.script(job))
        typer.echo(f"{len(submission.jobs)} scripts shown, nothing submitted", err=True)
    elif script_dir:
        submission.write_copy()
        for job in submission.jobs:
            out.print(str(submission.write_script(job)))
    elif submission.jobs:
        _submit(submission, wait=wait)
    elif submission.queued:
        cells = counted(len(submission.queued), "cell")
        out.print(f"nothing to submit: {cells} queued or running already")
    elif not plan.only and any(cell.status in ("missing", "failed") for cell in plan.cells):
        raise UsageError(
            "the plan has no jobs, and not all of its cells are done",
            hint="make it again: mbt plan MANIFEST",
        )
    else:
        out.print("nothing to submit: every cell is done")


def _here(target: Launcher) -> Launcher:
    """The launcher with its containers on this machine.

    Raises:
        UsageError: It has none.
    """
    if "here" not in type(target).model_fields:
        raise UsageError("`--here` runs containers of a launcher that has them", hint="--local 1")
    return target.model_copy(update={"here": True})


def _read(path: Path | None) -> tuple[bytes, str]:
    """The content of a plan, and where it is from."""
    if path is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("no plan on stdin", hint="mbt plan MANIFEST | mbt submit --slurm")
        return sys.stdin.buffer.read(), "stdin"
    if not path.is_file():
        raise UsageError(f"no file `{path}`", hint="mbt plan MANIFEST --json > plan.json")
    return path.read_bytes(), str(path)


def _submit(submission: NewSubmission, *, wait: bool) -> None:
    out = printer()
    pause = partial(time.sleep, _PAUSE_SECONDS) if wait else None

    def show(job: SubmittedJob) -> None:
        if job.launcher_id:
            after = f" after {', '.join(job.after)}" if job.after else ""
            cells = counted(len(job.cells), "cell")
            out.print(f"{job.launcher_id}  {job.id}, {cells}{after}")

    done = submission.submit_jobs(lambda line: out.print(line), pause, show)
    if queued := [job for job in done.jobs if job.launcher_id]:
        jobs = counted(len(queued), "job")
        out.print(f"{jobs} submitted; record: {submission.record}")
        out.print(f"watch: mbt status {submission.plan.study} --watch")
    if submission.mirror:
        out.print(f"fetch: mbt pull {submission.plan.study} --follow")
