"""A plan to scripts, and scripts to a queue; nothing is submitted twice."""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from mbt_cli.core.jobs import Job, Surroundings
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.model import Settings
from mbt_cli.core.names import nearest, utc_name
from mbt_cli.engine.plan import Plan, PlannedJob, command_for, plan_fingerprint, plan_json
from mbt_cli.engine.select import select
from mbt_cli.engine.states import States
from mbt_cli.errors import ArtifactError, ManifestError, MbtError, StaleError, UsageError
from mbt_cli.interfaces import Launcher
from mbt_cli.launchers.slurm import QueuedJob, Request, SlurmLauncher
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.toml import merged, read_toml, toml_text
from mbt_cli.settings import Machine
from mbt_cli.store.cells import cell_folder
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.lineage import read_lineage

_JOBS = ("gpu_job", "small_job")
_TRAIN = "train_job"


def slurm_preset(name: str, presets: PresetFolders) -> SlurmLauncher:
    """The launcher that a preset describes.

    `[job]` holds what `[gpu_job]` and `[small_job]` share, so that a cluster is said once;
    `[train_job]`, where there is one, is laid on `[gpu_job]`.

    Raises:
        UsageError: There is no such preset.
        ManifestError: Something in it is wrong; holds every problem found.
    """
    path = presets.find("slurm", name)
    if path is None:
        names = presets.names("slurm")
        raise UsageError(f"no Slurm preset `{name}`", hint=nearest(name, names))
    tree = read_toml(path)
    shared = tree.pop("job", {})
    problems = _misplaced(tree, shared)
    for job in _JOBS:
        tree[job] = merged(shared, tree.get(job, {}))
    if _TRAIN in tree:
        tree[_TRAIN] = merged(tree[_JOBS[0]], tree[_TRAIN])
    try:
        launcher = SlurmLauncher.model_validate(tree) if not problems else None
    except ValidationError as error:
        launcher = None
        own = SlurmLauncher.model_fields
        problems.add_validation("preset", error, {**own, "job": own[_JOBS[0]]})
    if launcher is None:
        raise ManifestError(str(path), problems.all())
    return launcher


def idle_gpus(launcher: SlurmLauncher, jobs: Sequence[Job]) -> str:
    """What to say where jobs book GPUs that they do not use; empty where none does."""
    booked = {job.id: _booked(launcher, job) for job in jobs if job.gpus}
    idle = [job for job in jobs if 0 < job.gpus < booked.get(job.id, 0)]
    if not idle:
        return ""
    first = min(idle, key=lambda job: job.gpus)
    return (
        f"note: {len(idle)} of {len(jobs)} jobs use fewer GPUs than the preset books: "
        f"`{first.id}` uses {first.gpus} of {booked[first.id]}; a preset with fewer would do"
    )


def _booked(launcher: SlurmLauncher, job: Job) -> int:
    """GPUs booked for it; 0 where a training spreads over all of several nodes."""
    request = launcher.request_for(job)
    return 0 if job.trains and request.nodes > 1 else request.gpus * request.nodes


def _misplaced(tree: Mapping[str, Any], shared: Mapping[str, Any]) -> Problems:
    """Keys that stand in no table or are none, and values left blank, each told once."""
    problems = Problems()
    for key in (key for key in tree if key in Request.model_fields):
        problems.add(key, "belongs in `[job]`, `[gpu_job]`, `[small_job]` or `[train_job]`")
    for key in (key for key in shared if key not in Request.model_fields):
        problems.add(f"job.{key}", f"unknown key; {nearest(key, Request.model_fields)}")
    for job, table in (("job", shared), *((job, tree.get(job, {})) for job in (*_JOBS, _TRAIN))):
        for key in (key for key, value in table.items() if value == ""):
            what = "is left blank: fill it in, or leave the line out for the cluster's default"
            problems.add(f"{job}.{key}", what)
    return problems


SUBMISSIONS = "submissions"
_JOBS_FILE = "jobs.json"


class SubmittedJob(Settings):
    """A job that was handed over."""

    id: str
    """Its name within the plan."""
    launcher_id: str
    """The queue's id of it; empty where it ran on this machine, without a queue."""
    cells: tuple[str, ...]
    """What it makes."""
    finishes: bool = True
    """Whether its cells are done when it is; an array of shards leaves that to a merging job."""
    after: tuple[str, ...] = ()
    """The queue's ids of jobs that it waits for."""


class Submission(Settings):
    """What became of one `mbt submit`."""

    schema_version: int = 1
    """Layout of this file."""
    study: str
    """Name of the study."""
    launcher: str
    """Kind of the place."""
    manifest: str
    """The manifest that a person typed."""
    again: str = ""
    """The command that goes on with it; empty in records of mbt 0.1."""
    jobs: tuple[SubmittedJob, ...] = ()
    """Jobs that were handed over, in order."""


def label_of(study: str, runs: Path) -> str:
    """What every job of a study in this runs folder bears, and no other."""
    return f"mbt:{study}:{sha256_of(str(runs.resolve()))[:12]}"


def new_record(runs: Path, study: str, *, now: datetime) -> Path:
    """A folder for a new submission, not made yet."""
    folder = runs.resolve() / study / SUBMISSIONS / utc_name(now)
    while folder.exists():  # twice within a second
        folder = folder.with_name(f"{folder.name}+")
    return folder


def write_copy(record: Path, plan: Plan, manifest: Manifest, presets: PresetFolders) -> None:
    """Keep plan, manifest, its own prompts and every preset in the record's folder.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    with writing_to(record):
        for name in ("scripts", "logs", "events"):
            (record / name).mkdir(parents=True, exist_ok=True)
        write_atomically(record / "plan.json", plan_json(plan).encode())
        tree = _with_plugins(manifest, record)
        write_atomically(record / "manifest.toml", toml_text(tree).encode())
        for family, path in _preset_files(presets):
            target = record / "presets" / family / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        for name in _own_prompts(manifest):
            target = record / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(manifest.path.parent / name, target)


def _with_plugins(manifest: Manifest, record: Path) -> Mapping[str, Any]:
    """The manifest's tree with its plug-in files copied into the record's folder."""
    files = manifest.document.study.plugins
    if not files:
        return manifest.tree
    copies = [Path("plugins", str(number), Path(file).name) for number, file in enumerate(files)]
    for file, copy in zip(files, copies, strict=True):
        (record / copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(file).expanduser(), record / copy)
    return merged(manifest.tree, {"study": {"plugins": [str(copy) for copy in copies]}})


def _preset_files(presets: PresetFolders) -> Iterator[tuple[str, Path]]:
    """Each preset that counts, but for those of clusters, with its family."""
    seen: set[tuple[str, str]] = set()
    for folder in presets.folders:
        for path in sorted(folder.glob("*/*")):
            key = (path.parent.name, path.name)
            if path.is_file() and key[0] != "slurm" and key not in seen:
                seen.add(key)
                yield path.parent.name, path


def _own_prompts(manifest: Manifest) -> Sequence[str]:
    """Prompt files that stand beside the manifest."""
    names = {t.name for c in manifest.cells.values() for t in c.resolution.templates.values()}
    folder = manifest.path.parent
    return sorted(
        name
        for name in names
        if not Path(name).is_absolute()
        and ".." not in Path(name).parts
        and (folder / name).is_file()
    )


def write_submission(record: Path, submission: Submission) -> None:
    """Say what has been handed over so far."""
    text = orjson.dumps(submission.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
    write_atomically(record / _JOBS_FILE, text + b"\n")


def read_submissions(runs: Path, study: str) -> Mapping[Path, Submission]:
    """Every submission of a study by its folder, the oldest first.

    Raises:
        ArtifactError: A record is damaged.
    """
    found: dict[Path, Submission] = {}
    for path in sorted((runs.resolve() / study / SUBMISSIONS).glob(f"*/{_JOBS_FILE}")):
        try:
            found[path.parent] = Submission.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ArtifactError(
                f"`{path}` is damaged: {error}", hint="remove its folder; artifacts stay"
            ) from None
    return found


def studies_with_submissions(runs: Path) -> list[str]:
    """Names of studies that were submitted from this runs folder."""
    return sorted({path.parents[2].name for path in runs.glob(f"*/{SUBMISSIONS}/*/{_JOBS_FILE}")})


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
