"""Slurm: `sbatch` scripts with every value quoted, and the queue as `squeue` and `sacct` show it.

The settings of a cluster come first, then the launcher, then the parts of a script. The fixed text
of the scripts is in slurm/job.sh, slurm/nodes.sh and slurm/ray.sh.
"""

import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from mbt_cli.core.findings import Finding, absent, answer_of, ok
from mbt_cli.core.gpus import GPUs, stated_gpus
from mbt_cli.core.jobs import EndedJob, Job, QueuedJob
from mbt_cli.core.names import nearest
from mbt_cli.core.number_text import counted
from mbt_cli.core.plugin import Settings, Variable
from mbt_cli.errors import MbtError, QueueFullError
from mbt_cli.interfaces import Launcher


def _one_word(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.,:=@#%/+*\[\]&|()-]+", value):
        raise ValueError(
            "cannot be part of an #SBATCH line: write one word without spaces or quotes"
        )
    return value


def _time_limit(value: str) -> str:
    if not re.fullmatch(r"(\d+-)?\d+(:\d\d){0,2}", value):
        raise ValueError("is not a time limit: write `HH:MM:SS` or `D-HH:MM:SS`")
    return value


Word = Annotated[str, AfterValidator(_one_word)]
"""A value of a directive. Slurm parses these lines itself, so no value may need quotes."""
Time = Annotated[str, AfterValidator(_time_limit)]

_NO_GRES = "none"
_SET_BY_MBT = (
    *("array", "comment", "dependency", "job-name", "nodes", "no-requeue", "ntasks"),
    *("ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal"),
    *("error", "test-only", "wait", "wrap"),
)
_NAMED = ("partition", "qos", "account", "time", "constraint", "mem")
_KEY_OF_OPTION = {
    **{name: name for name in (*_NAMED, "gres")},
    "cpus-per-task": "cpus",
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-gpu"), "gpus"),
}


class SlurmResources(Settings):
    """Resources of every job; a missing key leaves the choice to the cluster.

    `[gpu_job]` and `[small_job]` have the same keys and override those of `[job]`. Those of
    `[gpu_job]` and `[train_job]` describe a whole node: a job that needs some of its GPUs books the
    same share of its CPUs and memory.
    """

    partition: Word | None = None
    """Partition; default: the cluster's."""
    qos: Word | None = None
    """Quality of service."""
    account: Word | None = None
    """Account to charge."""
    time: Time | None = None
    """Time limit, `[D-]HH:MM:SS`."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of a node, requested as `--gpus-per-node`."""
    gpu_memory_gb: float | None = Field(default=None, gt=0)
    """Memory of each GPU as `nvidia-smi` shows it in GiB, such as 80; mbt places models by it."""
    gres: Word | None = None
    """Requests the GPUs in another form, such as `gpu:h100:4`; `gpus` must give the same number.
    `none` requests none, for clusters that give whole nodes and refuse such options."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs of a node, for its one task."""
    mem: Word | None = None
    """Memory of a node, such as `480G`; `0` requests all of it, and nothing for a job that needs
    some of the node's GPUs, which gets the cluster's default."""
    nodes: int = Field(default=1, ge=1)
    """Number of nodes that a job may have."""
    constraint: Word | None = None
    """Features that the nodes must have."""
    directives: list[Word] = Field(default_factory=list)
    """More options of `sbatch`, such as `--exclusive`, with which every job books whole nodes."""

    @field_validator("directives")
    @classmethod
    def _are_options(cls, directives: list[str]) -> list[str]:
        for directive in directives:
            if not directive.startswith("--"):
                raise ValueError(f"`{directive}` is not an option of sbatch: start it with `--`")
            name = directive[2:].partition("=")[0]
            if name in _SET_BY_MBT:
                raise ValueError(f"`--{name}` is set by mbt: remove it")
            if name == "export":
                raise ValueError("mbt says `--export=ALL`: remove `--export`")
            if name in ("clusters", "cluster"):
                raise ValueError(
                    f"`--{name}` would hide the jobs from `mbt status`: remove it, and set "
                    "SLURM_CLUSTERS in the shell that submits"
                )
            if key := _KEY_OF_OPTION.get(name):
                raise ValueError(f"`--{name}` has its own key: write `{key} = ...`")
        return directives

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        if self.gres is None or self.gres == _NO_GRES:
            return self
        found = _GPUS_OF_GRES.search(self.gres)
        if found and int(found[2]) != self.gpus:
            raise ValueError(
                f"`gres` requests {found[2]} GPUs and `gpus` says {self.gpus}: "
                f"write `gpus = {found[2]}` too"
            )
        one = _UNCOUNTED_GPU.search(self.gres)
        if one and self.gpus != 1:
            raise ValueError(
                f"`{one[0]}` of `gres` requests one GPU and `gpus` says {self.gpus}: "
                f"write `{one[0]}:{self.gpus or 1}` and `gpus = {self.gpus or 1}`"
            )
        if self.gpus and not _ANY_GPU.search(self.gres):
            raise ValueError(
                f"`gres` requests no GPU and `gpus` says {self.gpus}: add `gpu:{self.gpus}` to it"
            )
        return self

    @property
    def is_exclusive(self) -> bool:
        """Whether a job gets whole nodes, whatever it needs."""
        return "--exclusive" in self.directives or self.gres == _NO_GRES

    def share(self, gpus: int, nodes: int) -> Self:
        """What a job books that needs some nodes, and this many GPUs of each.

        Example:
            >>> node = SlurmResources(gpus=8, cpus=96, mem="1T", gres="gpu:h100:8", nodes=2)
            >>> share = node.share(2, 1)
            >>> share.gres, share.cpus, share.mem, share.nodes
            ('gpu:h100:2', 24, '256G', 1)
        """
        if gpus == self.gpus or self.is_exclusive:
            return self.model_copy(update={"nodes": nodes})
        gres = None if self.gres is None else _GPUS_OF_GRES.sub(rf"\g<1>{gpus}", self.gres)
        cpus = None if self.cpus is None else max(1, self.cpus * gpus // self.gpus)
        mem = None if self.mem is None else _part_of_memory(self.mem, gpus, self.gpus)
        own = {"gpus": gpus, "gres": gres, "cpus": cpus, "mem": mem, "nodes": nodes}
        return self.model_copy(update=own)

    def options(self) -> Iterator[str]:
        """Options of `sbatch` in a fixed order."""
        for name in _NAMED:
            if (value := getattr(self, name)) is not None:
                yield f"--{name}={value}"
        yield f"--nodes={self.nodes}"
        yield "--ntasks-per-node=1"
        if self.cpus is not None:
            yield f"--cpus-per-task={self.cpus}"
        if self.gres is not None and self.gres != _NO_GRES:
            yield f"--gres={self.gres}"
        elif self.gpus and self.gres is None:
            yield f"--gpus-per-node={self.gpus}"
        yield from self.directives


_GPUS_OF_GRES = re.compile(r"\b(gpu(?::[^:,(]+)?:)(\d+)(?=[,(]|$)")
_UNCOUNTED_GPU = re.compile(r"\bgpu(?::(?!\d+(?:[,(]|$))[^:,(]+)?(?=[,(]|$)")
"""As `gpu:h100`, which Slurm reads as one."""
_ANY_GPU = re.compile(r"\b(?:gpu|shard|mps)(?=[:,(]|$)")
_MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}


def _part_of_memory(mem: str, part: int, of: int) -> str | None:
    """The same share of a node's memory; None if it is all of it, whose size is not known.

    Example:
        >>> _part_of_memory("480G", 1, 8), _part_of_memory("100000", 1, 4)
        ('60G', '25000M')
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", mem.upper())
    megabytes = 0 if found is None else int(int(found[1]) * _MEGABYTES[found[2]] * part / of)
    if not megabytes:
        return None
    return f"{megabytes}M" if megabytes % 1024 else f"{megabytes // 1024}G"


def seconds_of(limit: str) -> int:
    """Seconds of a time limit as `sbatch` reads it.

    Example:
        >>> seconds_of("90"), seconds_of("1:30:00"), seconds_of("1-2")
        (5400, 5400, 93600)
    """
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # one number is minutes, two are minutes and seconds; after days the first one is hours
    parts = parts if days or len(parts) == 3 else [0, *parts]
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds


def _limited(resources: SlurmResources, job: Job, signal_seconds: int) -> SlurmResources:
    """The resources with the job's own time limit, where that is below the preset's."""
    if job.limit_seconds is None:
        return resources
    seconds = max(job.limit_seconds, 2 * signal_seconds)
    if resources.time is not None and seconds >= seconds_of(resources.time):
        return resources
    quarters = -(-seconds // 900)
    return resources.model_copy(update={"time": f"{quarters // 4}:{quarters % 4 * 15:02}:00"})


_SECONDS = 30
_SUBMIT_SECONDS = 60
_LIMITS_SECONDS = 10
_LONGEST_SIGNAL_SECONDS = 65_535
_NO_SLURM = "check with `sinfo` that Slurm runs; `mbt submit --local 1` runs jobs on this machine"
_FAILED = (
    *("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"),
    *("PREEMPTED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
)
_OVER = (*_FAILED, "COMPLETED", "CANCELLED")
_ON_NODES = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING")
_STUCK = re.compile(
    r"DependencyNeverSatisfied|JobHoldMaxRequeue|.*[Hh]eld.*|BadConstraints|"
    r"Partition(?:Time|Node)Limit|(?:QOS|Assoc)(?:Max\w+Per(?:Job|Node)|Min)\w*|"
    r"Invalid(?:Account|QOS)|(?:Account|QOS)NotAllowed"
)
"""Reasons of jobs that wait until a person does something: they are held, or ask for more than the
partition, the account or the quality of service ever gives one job."""
_FULL = (
    *("SubmitJob", "submission rate too high", "temporarily unable to accept job"),
    *("job queue full", "Job creation temporarily disabled"),
)
"""Parts of what `sbatch` says at a limit of jobs in the queue, such as
`QOSMaxSubmitJobPerUserLimit` and `AssocMaxSubmitJobLimit`."""
_NO_ANSWER = f"no answer for {_SUBMIT_SECONDS} s"
_NO_CONTROLLER = ("Socket timed out", "Unable to contact slurm controller", _NO_ANSWER)
"""Parts of what `sbatch` says if the controller is slow: it may have taken the job."""
_TOO_MANY_TASKS = "Invalid job array specification"
_MOST_NAMED = 1_000
"""Jobs that a command can name: its line is limited, and `squeue` reads the whole queue anyway."""


class SlurmLauncher(Launcher):
    """Submit jobs with `sbatch`."""

    job_id_variable = "SLURM_JOB_ID"
    splits_arrays = True
    option = "--slurm --preset"
    places = "clusters"
    tables: ClassVar[Mapping[str, type[Settings]]] = {"job": SlurmResources}

    kind: Literal["slurm"] = "slurm"
    """Name of the launcher."""
    note: str | None = None
    """Comment for readers: the cluster that it describes, and what was not tested."""
    gpu_job: SlurmResources
    """Resources of a job that serves or trains a model."""
    train_job: SlurmResources | None = None
    """Resources of a training; its keys override those of `[gpu_job]`."""
    small_job: SlurmResources
    """Resources of a job without a GPU: questions, scores, tables, merging."""
    modules: list[str] = Field(default_factory=list)
    """Environment modules to load first."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Variables for every job; secrets are refused: set them in the shell that submits."""
    setup: list[list[str]] = Field(default_factory=list)
    """Commands to run before mbt, each a list of words: `[["source", "env/bin/activate"]]`."""
    container: list[str] = Field(default_factory=list)
    """Words in front of the command, such as `["apptainer", "exec", "--nv", "mbt.sif"]`, or with
    pyxis `["srun", "--container-image=nvcr.io#ORG/IMAGE:TAG"]`."""
    mbt: list[str] = Field(default_factory=list)
    """The command that runs mbt in a job; default: the one that ran `mbt submit`."""
    multi_node: Literal["direct", "ray"] = "direct"
    """How a server runs on several nodes: `direct`, one of its processes on each; `ray`, on Ray,
    for vLLM versions without `--nnodes`. Trainings use the accelerate preset `multi_node`."""
    signal_seconds: int = Field(default=180, ge=10, le=_LONGEST_SIGNAL_SECONDS)
    """Time before the limit at which a job receives the signal to stop."""
    max_idle_requeues: int = Field(default=2, ge=0)
    """Number of times that a job without progress returns to the queue."""
    array_limit: int = Field(default=8, ge=1)
    """Tasks of an array that run at once."""
    max_dependencies: int = Field(default=40, ge=2)
    """Jobs that one job waits for; more are joined by small jobs in between."""

    _joins: dict[str, dict[str, frozenset[str]]] = PrivateAttr(default_factory=dict)
    """Job to the small jobs that join what it waits for."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.container and self.multi_node == "ray":
            raise ValueError(
                '`container` wraps only the command of mbt, and `multi_node = "ray"` starts Ray '
                "outside of it: use one of the two"
            )
        training = self.train_job or self.gpu_job
        if self.container and self.train_job is not None and training.nodes > 1:
            raise ValueError(
                "`container` wraps the command of mbt, and a training over several nodes calls "
                "`srun` from inside: use one node, or no container"
            )
        resources = (self.gpu_job, self.small_job, training)
        limits = [seconds_of(each.time) for each in resources if each.time is not None]
        if limits and self.signal_seconds >= min(limits):
            raise ValueError("`signal_seconds` must be less than the time limit of each job")
        return self

    @classmethod
    def from_preset(
        cls, tree: Mapping[str, Any], refuse: Callable[[str, str], None]
    ) -> Mapping[str, Any]:
        """Merge `[gpu_job]` and `[small_job]` into `[job]`, and `[train_job]` into `[gpu_job]`."""
        shared = tree.get("job", {})
        keys = SlurmResources.model_fields
        for key in tree:
            if key in keys:
                refuse(key, "belongs in `[job]`, `[gpu_job]`, `[small_job]` or `[train_job]`")
        for key in shared:
            if key not in keys:
                refuse(f"job.{key}", f"unknown key; {nearest(key, keys)}")
        for table in ("job", "gpu_job", "small_job", "train_job"):
            for key, value in tree.get(table, {}).items():
                if value == "":
                    refuse(
                        f"{table}.{key}",
                        "is left blank: fill it in, or remove the line for the cluster's default",
                    )
        jobs = {name: {**shared, **tree.get(name, {})} for name in ("gpu_job", "small_job")}
        if "train_job" in tree:
            jobs["train_job"] = {**jobs["gpu_job"], **tree["train_job"]}
        return {**{name: value for name, value in tree.items() if name != "job"}, **jobs}

    def resources_for(self, job: Job) -> SlurmResources:
        """The resources that a job gets.

        Raises:
            MbtError: It needs more GPUs than the preset gives.
        """
        if not job.gpus:
            return self.small_job
        resources = (self.train_job if job.trains else None) or self.gpu_job
        if job.fills and resources.gpus:
            return resources
        # a training names its nodes; a server takes the fewest among which its GPUs divide evenly
        counts = [job.nodes or 1] if job.trains else range(1, resources.nodes + 1)
        for nodes in counts:
            fits = nodes <= resources.nodes and job.gpus <= resources.gpus * nodes
            if fits and job.gpus % nodes == 0:
                return resources.share(job.gpus // nodes, nodes)
        table = "train_job" if job.trains and self.train_job else "gpu_job"
        fewer = "`launch.processes`" if job.trains else "`place.tensor_parallel_size`"
        on_nodes = f" on {resources.nodes} nodes each" if resources.nodes > 1 else ""
        raise MbtError(
            f"job `{job.id}` needs {counted(job.gpus, 'GPU')} and the preset gives "
            f"{resources.gpus}{on_nodes}",
            hint=f"raise `[{table}] gpus` or `nodes`, or lower the model's {fewer}",
        )

    @property
    def starts_with_srun(self) -> bool:
        """Whether the container is started by `srun`, as with pyxis."""
        return self.container[:1] == ["srun"]

    def gpus(self) -> GPUs | None:
        own = self.gpu_job
        return stated_gpus(own.gpus, own.gpu_memory_gb, own.nodes)

    def render(self, job: Job) -> str:
        resources = self._limited_resources(job)
        if job.trains and self.container and resources.nodes > 1:
            raise MbtError(
                f"job `{job.id}` trains on {resources.nodes} nodes, and calls `srun` from inside "
                "the `container`",
                hint="add `[train_job] nodes = 1` to the preset, or remove `container`",
            )
        heads = [words[:1] for words in self.setup]
        blocks = {
            # a bare `#` begins a comment
            "directives": [
                "#SBATCH " + option.replace("#", r"\#") for option in _options(self, job, resources)
            ],
            "settings": _settings(self, job),
            "modules": [
                *(_FIND_MODULE if self.modules or ["module"] in heads else []),
                *_site_commands([["module", "load", each] for each in self.modules]),
            ],
            "environment": [
                *_exports({**job.context.environment, **self.environment}),
                *_site_commands(self.setup),
            ],
            "threads": self._threads(job, resources),
            "nodes": _join_nodes(self, resources, job),
        }
        lines: list[str] = []
        for line in _template("job.sh").splitlines():
            head, _, name = line.partition("#@ ")
            lines.extend(blocks[name.strip()] if not head and name else [line])
        return "\n".join(lines) + "\n"

    def _limited_resources(self, job: Job) -> SlurmResources:
        return _limited(self.resources_for(job), job, self.signal_seconds)

    def _sbatch(self, job: Job, script: Path, after: Sequence[str]) -> str:
        options = _options(self, job, self._limited_resources(job))
        return _sbatch(script, options, after)

    def _threads(self, job: Job, resources: SlurmResources) -> list[str]:
        """The threads of each process of a training; a server chooses its own."""
        if not job.trains or "OMP_NUM_THREADS" in self.environment:
            return []
        share = max(1, resources.gpus)
        return [
            "# the processes of a training share the CPUs",
            'cpus="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}"',
            f'export OMP_NUM_THREADS="$((cpus > {share} ? cpus / {share} : 1))"',
        ]

    def notes(self, jobs: Sequence[Job]) -> Sequence[str]:
        """Names jobs that book more GPUs than they use or too little memory, and queue limits."""
        idle, unsaid = [], []
        for job in jobs:
            resources = self.resources_for(job)
            if not job.gpus or job.fills:
                continue
            node = (self.train_job if job.trains else None) or self.gpu_job
            if job.gpus < resources.gpus * resources.nodes:
                idle.append((job, resources.gpus * resources.nodes))
            elif node.mem is not None and resources.mem is None:
                unsaid.append(job)
        lines = []
        if idle:
            first, booked = min(idle, key=lambda each: each[0].gpus)
            whole = '`gres = "none"`' if self.gpu_job.gres == _NO_GRES else "`--exclusive`"
            lines.append(
                f"note: {len(idle)} of {len(jobs)} jobs use fewer GPUs than they book, because of "
                f"{whole}: `{first.id}` uses {first.gpus} of {booked}; remove it if the cluster "
                "shares nodes, or use a preset with fewer"
            )
        if unsaid:
            lines.append(
                f"note: {len(unsaid)} of {len(jobs)} jobs use some GPUs of a node and get the "
                "cluster's default memory, because `mem` is not an amount: write that of a node, "
                'such as `mem = "960G"`'
            )
        return [*lines, *self._note_of_limits(jobs)]

    def _note_of_limits(self, jobs: Sequence[Job]) -> Iterator[str]:
        """What a limit of the queue means for these jobs."""
        tasks: dict[tuple[str | None, ...], int] = {}
        for job in jobs:
            own = self.resources_for(job)
            key = own.partition, own.qos, own.account
            tasks[key] = tasks.get(key, 0) + len(job.tasks)
        for (partition, qos, account), count in tasks.items():
            own = SlurmResources(partition=partition, qos=qos, account=account)
            full = [limit for limit in _limits(own) if count > limit.room()]
            if full:
                least = min(full, key=lambda limit: limit.most)
                yield (
                    f"note: these are {count:,} jobs, tasks of arrays counted, and the queue takes "
                    f"{least.most:,} at a time ({least.name}): with `--wait`, mbt submits the "
                    "others as soon as it takes them"
                )
                return

    def submit(self, job: Job, script: Path, *, after: Sequence[str]) -> str:
        """Run `sbatch`; the job waits for `after`, by way of small jobs if those are too many.

        Raises:
            QueueFullError: The queue takes no more jobs, or not so many tasks.
            MbtError: There is no `sbatch`, or it refuses.
        """
        joins = self._joins.setdefault(job.name, {})  # of an earlier attempt too
        joined = frozenset[str]().union(*joins.values())
        waits = [*(one for one in after if one not in joined), *joins]
        while len(waits) > self.max_dependencies:
            first, waits = waits[: self.max_dependencies], waits[self.max_dependencies :]
            name = f"{job.name}-wait-{len(joins) + 1}"
            join = replace(job, id=name, argv=("true",), cells=(), gpus=0, shards=1, part=None)
            path = script.with_name(f"{name}.sh")
            path.write_text(self.render(join), encoding="utf-8")
            given = self._sbatch(join, path, first)
            joins[given] = frozenset(first)
            waits.append(given)
        try:
            return self._sbatch(job, script, waits)
        except QueueFullError as error:
            if len(job.tasks) > 1:
                own = self.resources_for(job)
                error.takes = _takes(len(job.tasks), own, self.array_limit)
            raise

    @classmethod
    def queued(cls, label: str, ids: Collection[str]) -> Sequence[QueuedJob]:
        named = sorted(ids) if not label and len(ids) <= _MOST_NAMED else ()
        jobs = (f"--jobs={','.join(named)}",) if named else ()
        shown = "%F\t%A\t%T\t%r\t%k\t%o"
        done = _answer(("squeue", "--noheader", "--array", *jobs, f"--format={shown}"))
        if isinstance(done, FileNotFoundError):
            raise MbtError("no `squeue` here", hint="ask on a login node of the cluster")
        if done is None:
            raise MbtError(f"`squeue` has not answered for {_SECONDS} s", hint=_NO_SLURM)
        if done.returncode and "Invalid job id" in done.stderr:  # the only one, and it has ended
            return ()
        if done.returncode:
            raise MbtError(f"`squeue` failed: {done.stderr.strip()}", hint=_NO_SLURM)
        found = []
        for line in done.stdout.splitlines():
            fields = line.split("\t")
            if len(fields) != len(shown.split("\t")) or fields[2] in _OVER:
                continue
            job, task, state, reason, comment, script = fields
            if comment == label if label else job in ids or task in ids:
                is_stuck = _STUCK.fullmatch(reason) is not None
                is_running = state in _ON_NODES
                found.append(QueuedJob(job, is_running, reason, task, is_stuck, script))
        return found

    @classmethod
    def ended(cls, job_id: str) -> EndedJob | None:
        return cls.ended_jobs([job_id]).get(job_id)

    @classmethod
    def ended_jobs(cls, job_ids: Collection[str]) -> Mapping[str, EndedJob]:
        """By `sacct`; where no accounts are kept, by what the controller remembers."""
        found: dict[str, EndedJob] = {}
        # in padded columns, `OUT_OF_MEMORY` would be cut off
        command = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State")
        names = sorted(job_ids)
        for start in range(0, len(names), _MOST_NAMED):
            some = ",".join(names[start : start + _MOST_NAMED])
            done = _answer((*command, f"--jobs={some}"))
            if not isinstance(done, subprocess.CompletedProcess) or done.returncode:
                break
            pairs = (line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)
            found |= _ends((re.split(r"[_+.]", job)[0], state) for job, state in pairs)
        left = set(job_ids) - found.keys()
        return {**_remembered(left), **found} if left else found

    @classmethod
    def gone(cls, job_id: str) -> bool:
        done = _answer(("squeue", "--noheader", "--format=%T", "--jobs", job_id))
        if not isinstance(done, subprocess.CompletedProcess):
            return False
        if done.returncode:
            return "Invalid job id" in done.stderr
        return all(state in _OVER for state in done.stdout.split())

    @classmethod
    def cancel(cls, job_ids: Sequence[str]) -> None:
        done = _answer(("scancel", *job_ids))
        if not isinstance(done, subprocess.CompletedProcess) or done.returncode:
            why = done.stderr.strip() if isinstance(done, subprocess.CompletedProcess) else ""
            raise MbtError(f"`scancel` failed: {why or 'no answer'}", hint=_NO_SLURM)

    @classmethod
    def logs(cls, job_id: str, record: Path, name: str) -> Sequence[Path]:
        own = re.compile(rf"{re.escape(name)}-[0-9_]+")
        return [path for path in (record / "logs").glob("*.log") if own.fullmatch(path.stem)]

    @classmethod
    def doctor(cls, environment: Mapping[str, str]) -> Iterator[Finding]:
        if shutil.which("sbatch", path=environment.get("PATH")) is None:
            do = "run `mbt submit --slurm` on a login node"
            yield absent("Slurm", "sbatch", "not found", do)
            return
        done = answer_of(("sinfo", "--noheader", "--format=%P"), environment, seconds=_SECONDS)
        if done is None:
            do = "ask the administrators of the cluster"
            yield absent("Slurm", "controller", "`sinfo` does not answer", do)
        elif done.returncode:
            words = (done.stderr.strip().splitlines() or ["`sinfo` failed"])[-1]
            yield absent("Slurm", "controller", words, "start it, or submit from a login node")
        else:
            yield ok("Slurm", "partitions", ", ".join(done.stdout.split()) or "none")


def _answer(
    command: Sequence[str], seconds: float = _SECONDS
) -> subprocess.CompletedProcess[str] | FileNotFoundError | None:
    """The finished command; an error if the program does not exist, None after `seconds`."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError as error:
        return error
    except subprocess.TimeoutExpired:
        return None


def _said(*command: str) -> str:
    """What a command prints; empty if it is missing, fails or does not answer."""
    done = _answer(command, _LIMITS_SECONDS)
    if not isinstance(done, subprocess.CompletedProcess) or done.returncode:
        return ""
    return done.stdout


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit of jobs in the queue, where each task of an array is one.

    Args:
        most: The most jobs.
        name: As Slurm names it, and whose it is.
        counted: Options of `squeue` that show the jobs that count.
    """

    most: int
    name: str
    counted: tuple[str, ...] = ()

    def room(self) -> int:
        """How many more jobs it allows now."""
        return max(0, self.most - _in_queue(*self.counted))


def _in_queue(*options: str) -> int:
    shown = _said("squeue", "--noheader", "--array", "--format=%F", *options)
    return sum(line.strip().isdigit() for line in shown.splitlines())


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _limits(resources: SlurmResources) -> Iterator[_Limit]:
    """The limits that `sacctmgr` tells of the user, in this account and quality of service."""
    config = _said("scontrol", "show", "config")
    if (cluster := re.search(r"ClusterName\s*=\s*(\S+)", config)) is None:
        return
    tell = ("sacctmgr", "--noheader", "--parsable2", "show")
    account, user = resources.account, _user()
    if account is None:
        account = _said(*tell, "user", user, "format=DefaultAccount").strip()
    own = ("assoc", f"user={user}", f"cluster={cluster[1]}", f"account={account}")
    fields = "format=Partition,DefaultQOS,QOS,MaxSubmitJobs,GrpSubmitJobs"
    names = {resources.qos} if resources.qos else set[str]()
    for line in _said(*tell, *own, fields).splitlines() if account else ():
        partition, default, allowed, *limits = line.split("|")
        if partition not in ("", resources.partition):
            continue
        if not names:
            names.add(default or (allowed if "," not in allowed else "normal"))
        for name, most in zip(("MaxSubmitJobs", "GrpSubmitJobs"), limits, strict=False):
            if most.isdigit():
                counted = (f"--user={user}", f"--account={account}")
                yield _Limit(int(most), f"{name} of the account {account}", counted)
    shown = ("scontrol", "--oneliner", "show", "partition")
    partition = resources.partition or ""
    for line in _said(*shown, *([partition] if partition else [])).splitlines():
        found = re.search(r"\bQoS=(\S+)", line)
        if found and found[1] != "N/A" and (partition or " Default=YES" in line):
            names.add(found[1])
    fields = "format=Name,MaxSubmitJobsPerUser,MaxSubmitJobsPerAccount,GrpSubmitJobs"
    for line in _said(*tell, "qos", fields).splitlines() if names else ():
        name, *limits = line.split("|")
        if name not in names or len(limits) != 3:
            continue
        kinds = {
            "MaxSubmitJobsPerUser": [f"--user={user}"],
            "MaxSubmitJobsPerAccount": [f"--account={account}"] if account else [],
            "GrpSubmitJobs": [],
        }
        for (kind, among), most in zip(kinds.items(), limits, strict=True):
            if most.isdigit():
                yield _Limit(int(most), f"{kind} of the QOS {name}", (*among, f"--qos={name}"))


def _takes(tasks: int, resources: SlurmResources, at_once: int) -> int:
    """How many tasks of an array, refused as a whole, the queue would take now.

    Few tasks are not a part of their own, since the parts of an array run one after the other.
    """
    config = _said("scontrol", "show", "config")
    sizes = [int(size) - 1 for size in re.findall(r"MaxArraySize\s*=\s*(\d+)", config)]
    sizes += [int(size) for size in re.findall(r"max_array_tasks=(\d+)", config)]
    if sizes and tasks > min(sizes):
        return max(1, min(sizes))
    limits = list(_limits(resources))
    limits += [_Limit(int(n), "") for n in re.findall(r"MaxJobCount\s*=\s*(\d+)", config)]
    room = min((limit.room() for limit in limits), default=tasks)
    least = min([at_once, *(limit.most // 2 for limit in limits)])
    if room >= tasks:  # by a limit that is not known
        room = tasks // 2
        least = at_once if _in_queue(f"--user={_user()}") else 1
    return room if room >= max(least, 1) else 0


def _sbatch(script: Path, options: Sequence[str], after: Sequence[str]) -> str:
    # a job that failed has made some of its cells, and the next one makes what it can of them
    wait = (f"--dependency=afterany:{':'.join(after)}", "--kill-on-invalid-dep=yes")
    # variables such as SBATCH_ACCOUNT and SBATCH_EXPORT override the script, but not the command
    own = ("--parsable", "--export=ALL", *options)
    command = ("sbatch", *own, *(wait if after else ()), str(script))
    try:
        done = subprocess.run(
            command,
            env=_outside_of_jobs(os.environ),
            capture_output=True,
            text=True,
            timeout=_SUBMIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise MbtError(
            "no `sbatch` here", hint="submit on a login node, or run here: --local 1"
        ) from None
    except subprocess.TimeoutExpired as late:
        told = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else ""
        done = subprocess.CompletedProcess(command, 1, "", told.strip() or _NO_ANSWER)
    if not done.returncode:
        # a site's own `sbatch` may say more
        if given := re.findall(r"^(\d+)(?:;\S*)?$", done.stdout, re.MULTILINE):
            return str(given[-1])
        raise MbtError(
            f"`sbatch` took `{script}` and named no job: {done.stdout.strip()[:500]}",
            hint="find the job with `squeue`, cancel it, and tell the administrators",
        )
    said = done.stderr.strip()
    is_slow = any(word in said for word in _NO_CONTROLLER)
    if is_slow and (taken := _taken(script)):
        return taken
    refused = f"`sbatch` refused `{script}`: {said}"
    if is_slow or _TOO_MANY_TASKS in said or any(word in said for word in _FULL):
        raise QueueFullError(refused)
    raise MbtError(refused)


_STAY = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT"})
_OF_A_JOB = re.compile("(?:SLURM|SLURMD|SRUN|PMI|PMIX)_.*|.*_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL")


def _outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what the job around `mbt submit` says about itself, if there is one.

    A new job would inherit its number as a task, its CPUs and its GPUs.
    """
    if "SLURM_JOB_ID" not in environment:
        return dict(environment)
    return {
        name: value
        for name, value in environment.items()
        if name in _STAY or not _OF_A_JOB.fullmatch(name)
    }


def _taken(script: Path) -> str | None:
    """The job that runs a script: a slow controller may have taken it and not answered."""
    shown = _said("squeue", "--noheader", f"--user={_user()}", "--format=%F\t%o")
    pairs = (line.split("\t") for line in shown.splitlines() if line.count("\t") == 1)
    return next((job for job, command in pairs if command == str(script)), None)


def _remembered(job_ids: Collection[str]) -> Mapping[str, EndedJob]:
    """How jobs ended, if the controller has not forgotten them, which it does after minutes."""
    one = next(iter(job_ids)) if len(job_ids) == 1 else ""
    done = _answer(("scontrol", "--oneliner", "show", "job", *([one] if one else [])))
    if not isinstance(done, subprocess.CompletedProcess) or done.returncode:
        return {}
    found = []
    for line in done.stdout.splitlines():
        values = dict(word.split("=", 1) for word in line.split() if "=" in word)
        job = values.get("ArrayJobId") or values.get("JobId", "")
        if job in job_ids:
            found.append((job, values.get("JobState", "")))
    return _ends(found)


def _ends(states: Iterable[tuple[str, str]]) -> dict[str, EndedJob]:
    """How jobs ended, from the states of their tasks: as a task that did not complete, if any."""
    tasks: dict[str, list[str]] = {}
    for job, state in states:
        tasks.setdefault(job, []).append(state.strip())
    found = {}
    for job, own in tasks.items():
        if any(state.partition(" ")[0] not in _OVER for state in own):
            continue  # a task still waits or runs
        worst = next((state for state in own if state != "COMPLETED"), "COMPLETED")
        if worst.startswith("CANCELLED"):  # `CANCELLED by UID`
            found[job] = EndedJob("cancelled", "CANCELLED")
        else:
            found[job] = EndedJob("completed" if worst == "COMPLETED" else "failed", worst)
    return found


def _options(preset: SlurmLauncher, job: Job, resources: SlurmResources) -> list[str]:
    """The options of `sbatch`, for the head of the script and for the command."""
    context = job.context
    log = str(context.record / "logs" / job.name)
    if re.search(r"""[\s"'\\#%]""", log):  # Slurm splits at spaces and has its own quoting
        raise MbtError(
            f"no #SBATCH line can name `{log}`: it contains a space, a quote, `#` or `%`",
            hint="set MBT_RUNS to a folder without them",
        )
    options = [
        f"--job-name={context.study}/{job.name}",
        f"--comment={context.label}",
        *resources.options(),
        f"--output={log}-{'%A_%a' if len(job.tasks) > 1 else '%j'}.log",
        "--open-mode=append",
        f"--signal=B:USR1@{preset.signal_seconds}",
        "--requeue",
    ]
    if len(job.tasks) > 1:
        options.append(f"--array=1-{len(job.tasks)}%{preset.array_limit}")
    return options


def _settings(preset: SlurmLauncher, job: Job) -> list[str]:
    context = job.context
    is_mbt = job.argv[0] == "mbt"
    argv = [*(preset.mbt or context.mbt), *job.argv[1:]] if is_mbt else job.argv
    return [
        f"job={shlex.quote(job.name)}",
        f"workdir={shlex.quote(str(context.workdir))}",
        f"record={shlex.quote(str(context.record))}",
        f"cache={shlex.quote(str(context.cache))}",
        f"first_tmpdir={shlex.quote(preset.environment.get('TMPDIR', ''))}",
        f"max_idle_requeues={preset.max_idle_requeues}",
        f"shards={job.shards} before={job.tasks.start - 1}",
        _bash_array("folders", [str(folder) for folder in context.folders]),
        _bash_array("command", [*_around(preset), *argv]),
    ]


def _around(preset: SlurmLauncher) -> list[str]:
    """The words of the container; `srun` starts one task on the first node, with all CPUs."""
    if not preset.starts_with_srun:
        return preset.container
    step = ("--overlap", "--nodes=1", "--ntasks=1", "--relative=0", "--export=ALL")
    return ["srun", *step, *preset.container[1:]]


def _bash_array(name: str, words: Sequence[str]) -> str:
    """A bash array, one word per line."""
    inner = "\n".join(f"  {shlex.quote(word)}" for word in words)
    return f"{name}=(\n{inner}\n)"


def _exports(environment: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


_FIND_MODULE = (
    "# bash alone inherits `module`, not from zsh or tcsh",
    'for place in "${MODULESHOME:-/usr/share/Modules}/init/bash" \\',
    "  /usr/share/lmod/lmod/init/bash /etc/profile.d/{modules,lmod,z00_lmod}.sh; do",
    "  if type module >/dev/null 2>&1; then break; fi",
    "  # shellcheck disable=SC1090  # a file of the cluster",
    '  if [ -r "$place" ]; then set +u; source "$place" || true; set -u; fi',
    "done",
)


def _site_commands(commands: Sequence[Sequence[str]]) -> list[str]:
    """Commands of the cluster, which may read unset variables and fail within.

    One that fails as a whole stops the job.
    """
    lines = [f"{typed} || gave_up {shlex.quote(typed)}" for typed in map(shlex.join, commands)]
    return ["set +u", *lines, "set -u"] if lines else []


def _join_nodes(preset: SlurmLauncher, resources: SlurmResources, job: Job) -> list[str]:
    """Commands that connect the nodes of an allocation with several."""
    # without a number, a step gets all CPUs of the job
    cpus = (
        "# srun does not inherit it",
        'if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then',
        '  export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',
        "fi",
    )
    if resources.nodes == 1:
        return list(cpus) if preset.starts_with_srun else []
    head = [
        'head_node="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"',
        'export MASTER_ADDR="$head_node" MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))',
        *cpus,
    ]
    if job.trains:
        return [*head, f"export MBT_PROCESSES=$((SLURM_JOB_NUM_NODES * {resources.gpus}))"]
    if preset.multi_node == "ray":
        return [*head, *_template("ray.sh").splitlines()[1:]]
    container = preset.container[1:] if preset.starts_with_srun else preset.container
    words = [*container, *(preset.mbt or job.context.mbt), "node"]
    return [*head, _bash_array("node", words), *_template("nodes.sh").splitlines()[1:]]


def _template(name: str) -> str:
    inside = Path(__file__).resolve().parents[1] / "_shipped" / "slurm"
    folder = inside if inside.is_dir() else Path(__file__).resolve().parents[2] / "slurm"
    return (folder / name).read_text(encoding="utf-8")
