"""A plan to scripts, and scripts to a queue; nothing is submitted twice."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from mbt_cli.core.jobs import Job, Surroundings
from mbt_cli.errors import MbtError, StaleError, UsageError
from mbt_cli.interfaces import Launcher
from mbt_cli.launchers.slurm_queue import QueuedJob
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.planning.plan_document import Plan, PlannedJob, command_for, plan_fingerprint
from mbt_cli.planning.select import select
from mbt_cli.planning.states import States
from mbt_cli.planning.submissions import (
    Submission,
    SubmittedJob,
    label_of,
    new_record,
    read_submissions,
    write_copy,
    write_submission,
)
from mbt_cli.settings import Machine
from mbt_cli.store.cells import cell_folder
from mbt_cli.store.lineage import read_lineage

_PASSED_ON = ("HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "MBT_OFFLINE", "MBT_NO_DOTENV")


@dataclass(frozen=True)
class Submitting:
    """One submission while it is made.

    Args:
        record: Its folder.
        jobs: What is to be handed over, what is needed first.
        waiting: Cell to the queue's id of the job that makes it already.
        again: The command that goes on with it.
    """

    plan: Plan
    manifest: Manifest
    presets: PresetFolders
    record: Path
    jobs: Sequence[Job]
    waiting: Mapping[str, str]
    again: str

    def keep(self) -> None:
        """Write the copy that the jobs run."""
        write_copy(self.record, self.plan, self.manifest, self.presets)

    def submission(self, launcher: str, jobs: Sequence[SubmittedJob] = ()) -> Submission:
        """The record of what has been handed over."""
        plan = self.plan
        return Submission(
            study=plan.study,
            launcher=launcher,
            manifest=plan.manifest,
            again=self.again,
            jobs=tuple(jobs),
        )

    def record_jobs_here(self) -> None:
        """Say which jobs run on this machine: no queue knows them, so they have no id there."""
        jobs = [
            SubmittedJob(
                id=job.id, launcher_id="", cells=tuple(job.cells), finishes=job.shards == 1
            )
            for job in self.jobs
        ]
        write_submission(self.record, self.submission("local", jobs))

    def write_script(self, launcher: Launcher, job: Job) -> Path:
        """The job's script in the record's folder."""
        path = self.record / "scripts" / f"{job.id}.sh"
        path.write_text(launcher.render(job), encoding="utf-8")
        path.chmod(0o755)
        return path

    def ids_in_queue(self, job: Job) -> list[str]:
        """Jobs of earlier submissions that make what this one reads."""
        needs = {c.address: c.needs for c in self.plan.cells}
        own = set(job.cells)
        wanted = (n for address in job.cells for n in needs[address] if n not in own)
        return list(dict.fromkeys(self.waiting[n] for n in wanted if n in self.waiting))


def check_plan(plan: Plan, manifest: Manifest, states: States, submit: str) -> None:
    """Refuse a plan that does not say what would be done now; `submit` is how it is submitted.

    Raises:
        UsageError: The manifest, a preset, a prompt or a data file changed since.
        StaleError: The plan leaves stale cells as they are.
    """
    strangers = {a for job in plan.jobs for a in job.cells} - {c.address for c in plan.cells}
    same_cells = {c.address for c in plan.cells} == set(manifest.cells)
    if strangers or not same_cells or plan.fingerprint != plan_fingerprint(manifest, states):
        raise UsageError(
            f"`{plan.manifest}`, or what it names, has changed since the plan was made",
            hint=f"{plan.command()} | {submit}",
        )
    chosen = set(select(manifest, kind=None, only=plan.only))
    stale = [c.address for c in plan.cells if c.status == "stale" and c.address in chosen]
    if stale and not plan.replace:
        raise StaleError(
            f"{len(stale)} finished cells were made by other settings, the first is `{stale[0]}`",
            hint=f"{plan.command(replace=True)} | {submit}",
        )


@dataclass(frozen=True)
class Here:
    """Where and when something is submitted.

    Args:
        record: Folder of the submission; null is one below the runs folder.
        now: The time that names it, UTC.
        mbt: How `mbt` is called in a job.
        submit: The command that submits, as it was typed.
    """

    machine: Machine
    record: Path | None
    now: datetime
    mbt: Sequence[str]
    submit: str = "mbt submit --slurm"


def prepare(
    plan: Plan,
    manifest: Manifest,
    presets: PresetFolders,
    here: Here,
    living: Callable[[str], Sequence[QueuedJob]],
) -> Submitting:
    """The jobs of a plan without those whose cells are on their way already.

    Args:
        plan: What is to be done.
        manifest: The manifest that it was made from.
        presets: Where presets are found.
        here: Where and when.
        living: A label to the jobs of that label that wait or run.
    """
    machine = here.machine
    label = label_of(plan.study, machine.runs)
    alive = {job.id for job in living(label)}
    waiting = cells_in_queue(machine.runs, plan.study, alive)
    # looked at after the queue: what has left it meanwhile is made by now
    ready = {*waiting, *_made_meanwhile(plan, machine.runs)}
    folder = here.record or new_record(machine.runs, plan.study, now=here.now)
    environment = {n: machine.environment[n] for n in _PASSED_ON if n in machine.environment}
    around = Surroundings(
        study=plan.study,
        workdir=Path.cwd(),
        record=folder,
        cache=machine.cache.resolve(),
        environment={**environment, "MBT_RUNS": str(machine.runs.resolve())},
        label=label,
        mbt=tuple(here.mbt),
    )
    jobs = [_job(job, plan, machine, around, ready) for job in plan.jobs]
    kept = [job for job in jobs if job is not None]
    again = f"{plan.command()} | {here.submit}"
    return Submitting(plan, manifest, presets, folder, kept, waiting, again)


def cells_in_queue(runs: Path, study: str, alive: set[str]) -> dict[str, str]:
    """Cell to the queue's id of the living job that finishes it."""
    return {
        address: job.launcher_id
        for submission in read_submissions(runs, study).values()
        for job in submission.jobs
        if job.launcher_id in alive and job.finishes
        for address in job.cells
    }


def _made_meanwhile(plan: Plan, runs: Path) -> set[str]:
    """Cells that were not there when the plan was made and are now."""
    return {
        cell.address
        for cell in plan.cells
        if cell.status in ("missing", "failed")
        and read_lineage(cell_folder(runs, plan.study, cell.address)) is not None
    }


def _job(
    planned: PlannedJob,
    plan: Plan,
    machine: Machine,
    around: Surroundings,
    ready: Collection[str],
) -> Job | None:
    """The job on the submission's own copy; None when all its cells are made or on their way."""
    cells = [address for address in planned.cells if address not in ready]
    if not cells:
        return None
    copy = str(around.record / "manifest.toml")
    merges = planned.argv[1] == "merge"
    argv = command_for(cells, copy, merges=merges, replace=plan.replace)
    folders = [cell_folder(machine.runs.resolve(), plan.study, a) for a in cells]
    return Job(
        id=planned.id,
        argv=(*argv, "--presets", str(around.record / "presets")),
        cells=cells,
        needs=planned.needs,
        resources=planned.resources,
        shards=planned.shards,
        around=replace(around, folders=folders),
        trains=planned.kind == "train",
    )


def hand_over(submitting: Submitting, launcher: Launcher, *, max_dependencies: int) -> Submission:
    """Submit every job; the record says after each one what has been handed over.

    Raises:
        MbtError: The queue refuses a job; those before it stay, and the same command submits
            the rest.
    """
    submitting.keep()
    done = submitting.submission(launcher.kind)
    write_submission(submitting.record, done)
    ids: dict[str, str] = {}
    for job in submitting.jobs:
        after = [ids[need] for need in job.needs if need in ids] + submitting.ids_in_queue(job)
        try:
            joined = _joined(submitting, launcher, job, after, max_dependencies)
            given = launcher.submit(submitting.write_script(launcher, job), after=joined)
        except MbtError as error:
            raise MbtError(
                f"{error.message} ({len(ids)} of {len(submitting.jobs)} jobs were submitted)",
                hint=error.hint or f"{submitting.again} submits the rest and nothing twice",
            ) from error
        ids[job.id] = given
        record = SubmittedJob(
            id=job.id,
            launcher_id=given,
            cells=tuple(job.cells),
            finishes=job.shards == 1,
            after=tuple(joined),
        )
        done = done.model_copy(update={"jobs": (*done.jobs, record)})
        write_submission(submitting.record, done)
    return done


def _joined(
    submitting: Submitting, launcher: Launcher, job: Job, after: Sequence[str], most: int
) -> list[str]:
    """At most `most` jobs to wait for: more are joined by small jobs that only wait."""
    waits = list(after)
    step = 0
    while len(waits) > most:
        step += 1
        first, waits = waits[:most], waits[most:]
        barrier = replace(
            job, id=f"{job.id}-wait-{step}", argv=("true",), cells=(), resources={}, shards=1
        )
        script = submitting.write_script(launcher, barrier)
        waits.append(launcher.submit(script, after=first))
    return waits
