"""Slurm: `sbatch` scripts in full, every value quoted."""

import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from mbt_cli.core.jobs import Job, Surroundings
from mbt_cli.core.model import VARIABLE, Settings
from mbt_cli.core.secrets import is_secret
from mbt_cli.errors import MbtError
from mbt_cli.interfaces import Launcher

_WORD = re.compile(r"[A-Za-z0-9_.,:=@%/+*\[\]&|()-]+")
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
_GPUS = re.compile(r"gpu(?::[^:,]+)?:(\d+)")
_OWN_OPTIONS = (
    *("array", "comment", "dependency", "job-name", "nodes", "no-requeue", "ntasks"),
    *("ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal"),
)
"""What every script says already."""
_NAMED = ("partition", "qos", "account", "time", "constraint", "mem", "gres")
_KEYS = {
    **{name: name for name in _NAMED},
    "cpus-per-task": "cpus",
    "gpus-per-node": "gpus",
}
"""Options that have a key."""


def _one_word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError("no #SBATCH line can hold this: write one word without spaces or quotes")
    return value


def _time_limit(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise ValueError("is no time limit: write `HH:MM:SS` or `D-HH:MM:SS`")
    return value


def seconds_of(limit: str) -> int:
    """Seconds of a time limit as `sbatch` reads it.

    Example:
        >>> seconds_of("90"), seconds_of("1:30:00"), seconds_of("1-2")
        (5400, 5400, 93600)
    """
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # one number is minutes, two are minutes and seconds; after days it begins with hours
    parts = parts if days or len(parts) == 3 else [0, *parts]
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds


Word = Annotated[str, AfterValidator(_one_word)]
"""A value of a directive: Slurm reads these lines itself, so nothing may need quoting."""
Time = Annotated[str, AfterValidator(_time_limit)]


class Request(Settings):
    """What `sbatch` is asked for; a key that is left out is left to the cluster."""

    partition: Word | None = None
    """Partition; left out, the cluster's default."""
    qos: Word | None = None
    """Quality of service."""
    account: Word | None = None
    """Account that is charged."""
    time: Time | None = None
    """Time limit, `[D-]HH:MM:SS`."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of each node, asked for as `--gpus-per-node`."""
    gres: Word | None = None
    """Another way to say the GPUs, such as `gpu:h100:4`; `gpus` then says how many those are."""
    cpus: int | None = Field(default=None, ge=1)
    """Processors of the one task on each node."""
    mem: Word | None = None
    """Memory of each node, such as `480G`; `0` is all of it."""
    nodes: int = Field(default=1, ge=1)
    """Nodes."""
    constraint: Word | None = None
    """Features that nodes must have."""
    directives: list[Word] = Field(default_factory=list)
    """More options of `sbatch`, such as `--exclusive`."""

    @field_validator("directives")
    @classmethod
    def _are_options(cls, directives: list[str]) -> list[str]:
        for directive in directives:
            if not directive.startswith("--"):
                raise ValueError(f"`{directive}` is no option of sbatch: those begin with `--`")
            name = directive[2:].partition("=")[0]
            if name in _OWN_OPTIONS:
                raise ValueError(f"`--{name}` is what mbt sets itself, so leave it out")
            if name == "export":
                raise ValueError("keys reach a job through sbatch's usual export: leave it out")
            if key := _KEYS.get(name):
                raise ValueError(f"`--{name}` has a key of its own: `{key} = ...`")
        return directives

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        found = _GPUS.search(self.gres or "")
        if found and int(found[1]) != self.gpus:
            raise ValueError(
                f"`gres` asks for {found[1]} GPUs and `gpus` says {self.gpus}: "
                f"write `gpus = {found[1]}` too"
            )
        return self

    def lines(self) -> Iterator[str]:
        """Options in a fixed order."""
        for name in _NAMED[:-1]:
            if (value := getattr(self, name)) is not None:
                yield f"--{name}={value}"
        yield f"--nodes={self.nodes}"
        yield "--ntasks-per-node=1"
        if self.cpus is not None:
            yield f"--cpus-per-task={self.cpus}"
        if self.gres is not None:
            yield f"--gres={self.gres}"
        elif self.gpus:
            yield f"--gpus-per-node={self.gpus}"
        yield from self.directives


_SECONDS = 30
_NO_SLURM = "see with `sinfo` that Slurm runs; `mbt submit --local 1` runs jobs on this machine"
_FORMAT = "%F\t%K\t%T\t%r\t%j\t%k"
_LIVING = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job or array task.

    Args:
        id: Slurm's id of the job, of the whole array for a task.
        task: Its number or numbers in the array; empty for a job that is none.
        state: As Slurm spells it: PENDING, RUNNING, ...
        reason: Why it waits.
        name: Its name: study and job id.
        label: Its comment: what all jobs of a study bear.
    """

    id: str
    task: str
    state: str
    reason: str
    name: str
    label: str


def queued(label: str) -> list[QueuedJob]:
    """Jobs of one label that wait or run; none where there is no Slurm.

    Raises:
        MbtError: squeue fails.
    """
    command = ("squeue", "--noheader", "--array", f"--format={_FORMAT}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        return []
    except subprocess.TimeoutExpired:
        raise MbtError(f"`squeue` has not answered for {_SECONDS} s", hint=_NO_SLURM) from None
    if done.returncode:
        raise MbtError(f"`squeue` fails: {done.stderr.strip()}", hint=_NO_SLURM)
    return [job for line in done.stdout.splitlines() if (job := _job(line)) and job.label == label]


def queued_where_reachable(label: str) -> list[QueuedJob]:
    """The same for what submits nothing to Slurm: a queue that cannot be asked holds nothing."""
    try:
        return queued(label)
    except MbtError:
        return []


def has_left_queue(job: str) -> bool:
    """Whether Slurm says for certain that a job neither waits nor runs."""
    command = ("squeue", "--noheader", "--format=%T", "--jobs", job)
    done = _answer(command)
    if done is None:
        return False
    if done.returncode:
        return "Invalid job id" in done.stderr
    return not any(state in _LIVING for state in done.stdout.split())


def _job(line: str) -> QueuedJob | None:
    fields = line.split("\t")
    if len(fields) != 6 or fields[2] not in _LIVING:
        return None
    number, task, state, reason, name, label = fields
    return QueuedJob(number, "" if task == "N/A" else task, state, reason, name, label)


def ended_state(job: str) -> str:
    """How a job ended, such as `COMPLETED`, `CANCELLED`, `OUT_OF_MEMORY`; empty if forgotten."""
    for command in (
        ("sacct", "--noheader", "--allocations", "--format=State", "--jobs", job),
        ("scontrol", "--oneliner", "show", "job", job),
    ):
        done = _answer(command)
        if done is not None and done.returncode == 0 and (state := _state(done.stdout)):
            return state
    return ""


def _answer(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """What a command printed; None where it is not there or does not answer in time."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None


def _state(text: str) -> str:
    """The worst state of what is shown: one task that failed tells more than nine that did not."""
    words = text.replace("JobState=", " JobState= ").split()
    shown = [words[i + 1] for i, w in enumerate(words[:-1]) if w == "JobState="]
    states = shown or words
    bad = [s for s in states if s != "COMPLETED" and s.isupper()]
    return bad[0].rstrip("+") if bad else next((s for s in states if s.isupper()), "")


def cancel(jobs: Sequence[str]) -> None:
    """Take jobs out of the queue and stop those that run.

    Raises:
        MbtError: scancel refuses.
    """
    done = subprocess.run(
        ("scancel", *jobs), capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise MbtError(f"`scancel` fails: {done.stderr.strip()}", hint=_NO_SLURM)


_LONGEST_SIGNAL_SECONDS = 65_535


def _variable(name: str) -> str:
    # the name alone: a message about the table would show its values
    if not re.fullmatch(VARIABLE, name):
        raise ValueError("is no name of a variable: letters, digits and `_`, no digit first")
    if is_secret(name):
        raise ValueError("looks like a secret: set it where you submit from")
    return name


Variable = Annotated[str, AfterValidator(_variable)]

_SUBMIT_SECONDS = 60


class SlurmLauncher(Launcher):
    """Hand jobs to `sbatch`."""

    kind: Literal["slurm"] = "slurm"
    """Names the launcher in a preset."""
    note: str | None = None
    """For people: which cluster this is for, what was not run by us."""
    gpu_job: Request
    """What a job that serves or trains a model asks for."""
    train_job: Request | None = None
    """What a training asks for instead; its keys are laid on those of `[gpu_job]`."""
    small_job: Request
    """What a job without a GPU asks for: questions, scores, tables, merging."""
    modules: list[str] = Field(default_factory=list)
    """Environment modules that are loaded first."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Variables for every job; no secret: those come from the environment of `mbt submit`."""
    setup: list[list[str]] = Field(default_factory=list)
    """Commands that run before mbt, each a list of words: `[["source", "env/bin/activate"]]`."""
    container: list[str] = Field(default_factory=list)
    """Words that stand before the command, such as `["apptainer", "exec", "--nv", "mbt.sif"]`."""
    mbt: list[str] = Field(default_factory=list)
    """How mbt is called in a job; left out, as `mbt submit` was."""
    multi_node: Literal["none", "ray"] = "none"
    """`ray`: where `[gpu_job]` has several nodes, they are joined for vLLM before the command
    starts. Trainings need no word here: they take the accelerate preset `multi_node`."""
    signal_seconds: int = Field(default=180, ge=10, le=_LONGEST_SIGNAL_SECONDS)
    """Time before the limit at which a job is told to stop."""
    max_idle_requeues: int = Field(default=2, ge=0)
    """Times a job may go back into the queue without having made anything."""
    array_limit: int = Field(default=8, ge=1)
    """Tasks of an array that run at once."""
    max_dependencies: int = Field(default=40, ge=2)
    """Jobs that one job waits for; more are joined by small jobs in between."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.container and self.multi_node == "ray":
            raise ValueError(
                '`container` wraps mbt\'s command alone, so `multi_node = "ray"` would start Ray '
                "outside of it: take one of the two"
            )
        if self.container and self._training.nodes > 1:
            raise ValueError(
                "`container` wraps mbt's command, and a training over several nodes calls `srun` "
                "from inside of it: take one node, or no container"
            )
        requests = (self.gpu_job, self.small_job, self._training)
        limits = [request.time for request in requests if request.time is not None]
        if limits and self.signal_seconds >= min(map(seconds_of, limits)):
            raise ValueError("`signal_seconds` is not below the time limit of each job")
        return self

    @property
    def _training(self) -> Request:
        return self.train_job or self.gpu_job

    def request_for(self, job: Job) -> Request:
        """What a job asks for.

        Raises:
            MbtError: It wants more GPUs than the preset gives.
        """
        if not job.gpus:
            return self.small_job
        request = self._training if job.trains else self.gpu_job
        is_wide = self.multi_node == "ray" and not job.trains
        if job.gpus > request.gpus * (request.nodes if is_wide else 1):
            table = "train_job" if job.trains and self.train_job else "gpu_job"
            fewer = "`launch.processes`" if job.trains else "`place.tensor_parallel_size`"
            raise MbtError(
                f"job `{job.id}` wants {job.gpus} GPUs and the preset gives {request.gpus}",
                hint=f"raise `[{table}] gpus`, or lower the model's {fewer}",
            )
        return request

    def render(self, job: Job) -> str:
        return self.fill(job, _template("job.sh"))

    def fill(self, job: Job, template: str) -> str:
        """The script: the template with its marked lines replaced."""
        if job.around is None:
            raise MbtError(f"job `{job.id}` has no place to run in")
        request = self.request_for(job)
        blocks = {
            "directives": _directives(self, job, job.around, request),
            "settings": _settings(self, job, job.around),
            "modules": _site([f"module load {shlex.quote(name)}" for name in self.modules]),
            "environment": [
                *_exports({**job.around.environment, **self.environment}),
                *_site([shlex.join(words) for words in self.setup]),
            ],
            "nodes": _nodes(self.multi_node, request, job),
        }
        lines: list[str] = []
        for line in template.splitlines():
            head, _, name = line.partition("#@ ")
            lines.extend(blocks[name.strip()] if not head and name else [line])
        return "\n".join(lines) + "\n"

    def submit(self, script: Path, *, after: Sequence[str]) -> str:
        """Hand the script to `sbatch`, held back until these jobs have succeeded.

        Raises:
            MbtError: There is no `sbatch`, or it refuses.
        """
        wait = (f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes")
        command = ("sbatch", "--parsable", *(wait if after else ()), str(script))
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SUBMIT_SECONDS, check=False
            )
        except FileNotFoundError:
            raise MbtError(
                "there is no `sbatch` here", hint="submit on a login node, or here: --local 1"
            ) from None
        except subprocess.TimeoutExpired:
            raise MbtError(f"`sbatch` has not answered for {_SUBMIT_SECONDS} s") from None
        if done.returncode:
            raise MbtError(f"`sbatch` refuses `{script}`: {done.stderr.strip()}")
        return done.stdout.strip().partition(";")[0]


def _directives(
    preset: SlurmLauncher, job: Job, around: Surroundings, request: Request
) -> list[str]:
    log = around.record / "logs" / (f"{job.id}-%A_%a.log" if job.shards > 1 else f"{job.id}-%j.log")
    options = [
        f"--job-name={around.study}/{job.id}",
        f"--comment={around.label}",
        *request.lines(),
        f"--output={_bare(str(log))}",
        "--open-mode=append",
        f"--signal=B:USR1@{preset.signal_seconds}",
        "--requeue",
    ]
    if job.shards > 1:
        options.append(f"--array=1-{job.shards}%{preset.array_limit}")
    return [f"#SBATCH {option}" for option in options]


def _bare(path: str) -> str:
    """A path in a directive, which Slurm splits at spaces and where quotes are its own.

    Raises:
        MbtError: The path holds what no directive can say.
    """
    if re.search(r"""[\s"'\\#%]""", path.replace("%A_%a", "").replace("%j", "")):
        raise MbtError(
            f"no #SBATCH line can name `{path}`: it holds a space, a quote, `#` or `%`",
            hint="set MBT_RUNS to a folder without",
        )
    return path


def _settings(preset: SlurmLauncher, job: Job, around: Surroundings) -> list[str]:
    is_mbt = job.argv[0] == "mbt"
    argv = [*(preset.mbt or around.mbt), *job.argv[1:]] if is_mbt else job.argv
    return [
        f"job={shlex.quote(job.id)}",
        f"workdir={shlex.quote(str(around.workdir))}",
        f"record={shlex.quote(str(around.record))}",
        f"cache={shlex.quote(str(around.cache))}",
        f"max_idle_requeues={preset.max_idle_requeues} tasks={job.shards}",
        _array("folders", [str(folder) for folder in around.folders]),
        _array("command", [*preset.container, *argv]),
    ]


def _site(commands: Sequence[str]) -> list[str]:
    """The cluster's own commands, which may read variables that are not set."""
    return ["set +u", *commands, "set -u"] if commands else []


def _array(name: str, words: Sequence[str]) -> str:
    """A bash array, one word a line where there are several."""
    inner = "\n".join(f"  {shlex.quote(word)}" for word in words)
    return f"{name}=(\n{inner}\n)"


def _exports(environment: dict[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def _nodes(way: str, request: Request, job: Job) -> list[str]:
    """What is done inside the allocation when it has several nodes."""
    if request.nodes == 1 or (way == "none" and not job.trains):
        return []
    head = [
        'head_node="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"',
        'export MASTER_ADDR="$head_node" MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))',
        'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"  # srun does not take it by itself',
    ]
    if job.trains:
        return [*head, f"export MBT_PROCESSES=$((SLURM_JOB_NUM_NODES * {request.gpus}))"]
    return [*head, *_template("ray.sh").splitlines()[1:]]


def _template(name: str) -> str:
    inside = Path(__file__).resolve().parents[1] / "_shipped" / "slurm"
    folder = inside if inside.is_dir() else Path(__file__).resolve().parents[2] / "slurm"
    return (folder / name).read_text(encoding="utf-8")
