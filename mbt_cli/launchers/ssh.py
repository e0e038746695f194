"""Hosts without a scheduler: a queue in a folder that all of them share, one runner on each.

`mbt submit` needs ssh only to start the runners; from then on everything is in the submission's
folder, and `mbt status`, `logs` and `cancel` read and write there. See `ssh_runner`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from mbt_cli.core.findings import Finding, absent
from mbt_cli.core.gpus import GPUs, stated_gpus
from mbt_cli.core.jobs import EndedJob, Job, QueuedJob
from mbt_cli.core.plugin import VARIABLE, Variable
from mbt_cli.errors import MbtError
from mbt_cli.interfaces import Launcher
from mbt_cli.launchers import ssh_runner
from mbt_cli.launchers.ssh_runner import ALIVE, JOB_VARIABLE, JOBS, QUEUE, SHARD_VARIABLE, STATE

_CONNECT_SECONDS = 20
_START_SECONDS = 120


def _destination(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*", value):
        raise ValueError(
            "is not a host for ssh: write `HOST`, `USER@HOST` or a name of ~/.ssh/config"
        )
    return value


def _indices(gpus: int | list[int]) -> list[int]:
    found = list(range(gpus)) if isinstance(gpus, int) else gpus
    if any(gpu < 0 for gpu in found) or len(set(found)) < len(found) or (gpus != 0 and not found):
        raise ValueError("write the number of GPUs, or the list of their indices: `[0, 1]`")
    return found


def _named(value: str) -> str:
    if not re.fullmatch(VARIABLE, value):
        raise ValueError("is not the name of a variable; its value is taken from your shell")
    return value


Destination = Annotated[str, AfterValidator(_destination)]
Gpus = Annotated[int | list[int], AfterValidator(_indices)]
VariableName = Annotated[str, AfterValidator(_named)]


class SshLauncher(Launcher):
    """Run jobs on hosts that share a folder, without a scheduler."""

    job_id_variable = JOB_VARIABLE
    option = "--ssh --preset"
    places = "hosts without a scheduler"

    kind: Literal["ssh"] = "ssh"
    """Name of the launcher."""
    note: str | None = None
    """Comment for readers."""
    hosts: dict[Destination, Gpus] = Field(min_length=1)
    """Each host as `ssh` knows it, with its number of GPUs, or the indices of those to use:
    `{ gpu-a = 8, "me@10.0.0.2" = [0, 1] }`."""
    gpu_memory_gb: float | None = Field(default=None, gt=0)
    """Memory of each GPU as `nvidia-smi` shows it in GiB, such as 80, of the smallest if they
    differ; mbt places models by it on the host with the most GPUs."""
    small_jobs: int = Field(default=2, ge=1)
    """Jobs without a GPU that run at once on a host."""
    python: str = ""
    """Python on the hosts that starts the runners; default: the path of the one that submits."""
    mbt: list[str] = Field(default_factory=list)
    """The command that runs mbt in a job; default: the one that ran `mbt submit`."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Variables for every job; secrets are refused: see `pass_on`."""
    pass_on: list[VariableName] = Field(
        default_factory=lambda: ["HF_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY"]
    )
    """Names of variables that jobs get from the shell that submits; their values stay in memory."""
    setup: list[list[str]] = Field(default_factory=list)
    """Commands to run before mbt, each a list of words: `[["source", "env/bin/activate"]]`."""
    ssh: list[str] = Field(default_factory=lambda: ["ssh"], min_length=1)
    """The command that connects, such as `["ssh", "-F", "my_config"]`."""
    host_timeout_seconds: int = Field(default=120, ge=5)
    """Time without a sign of life after which a host counts as dead, and others take its jobs."""

    _folder: Path | None = PrivateAttr(default=None)

    def _gpus(self) -> Iterator[tuple[str, list[int]]]:
        for name, gpus in self.hosts.items():
            yield name, gpus if isinstance(gpus, list) else list(range(gpus))

    def gpus(self) -> GPUs | None:
        return stated_gpus(max(len(own) for _, own in self._gpus()), self.gpu_memory_gb)

    def notes(self, jobs: Sequence[Job]) -> Sequence[str]:
        """Names the hosts on which some jobs do not fit."""
        needs = [job.gpus for job in jobs if job.gpus]
        small = [
            f"{name} ({len(own)})" for name, own in self._gpus() if 0 < len(own) < max([0, *needs])
        ]
        if not small:
            return ()
        return (
            f"note: jobs with a model use up to {max(needs)} GPUs, and never run where there are "
            f"fewer: {', '.join(small)}; write a smaller number or list in `hosts` to use these "
            "too",
        )

    def render(self, job: Job) -> str:
        most = max(len(gpus) for _, gpus in self._gpus())
        if job.gpus > most:
            fewer = "`launch.processes`" if job.trains else "`place.tensor_parallel_size`"
            raise MbtError(
                f"job `{job.id}` needs {job.gpus} GPUs and no host of the preset has more "
                f"than {most}",
                hint=f"lower the model's {fewer}, or add a host to `hosts`",
            )
        context, argv = job.context, job.argv
        words = [*(self.mbt or context.mbt), *argv[1:]] if argv[0] == "mbt" else argv
        variables = {**context.environment, **self.environment}
        lines = [
            "#!/bin/bash",
            "set -euo pipefail",
            f"# One job of the study {context.study}, written by `mbt submit`.",
            *(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())),
            f"cd -- {shlex.quote(str(context.workdir))}",
        ]
        if self.setup:
            lines += ["set +u", *(shlex.join(words) for words in self.setup), "set -u"]
        lines.append(f"command=({shlex.join(words)})")
        if job.shards > 1:
            lines.append(f'command+=(--shard "${SHARD_VARIABLE}")')
        return "\n".join([*lines, 'exec "${command[@]}"']) + "\n"

    def submit(self, job: Job, script: Path, *, after: Sequence[str]) -> str:
        """Write the job into the queue of its submission; `finish` starts the runners."""
        folder = job.context.record.resolve() / "ssh"
        if self._folder is None:
            self._folder = folder
            for name in (JOBS, STATE):
                (folder / name).mkdir(parents=True, exist_ok=True)
            head = {
                "hosts": list(self._gpus()),
                "small_jobs": self.small_jobs,
                "host_timeout_seconds": self.host_timeout_seconds,
            }
            (folder / QUEUE).write_text(json.dumps(head), encoding="utf-8")
            shutil.copyfile(ssh_runner.__file__, folder / "runner.py")
        queued = {
            "name": job.id,
            "script": str(script.resolve()),
            "log": str(job.context.record.resolve() / "logs"),
            "after": list(after),
            "gpus": job.gpus,
            "tasks": list(range(1, job.shards + 1)) if job.shards > 1 else [0],
        }
        # numbered, so that runners see them in the order of the plan
        number = len(list((folder / JOBS).iterdir()))
        path = folder / JOBS / f"{number:06}.json"
        path.write_text(json.dumps(queued), encoding="utf-8")
        return str(folder / job.id)

    def finish(self, note: Callable[[str], None]) -> None:
        """Start a runner on each host that answers.

        Raises:
            MbtError: No host answers.
        """
        if self._folder is None:
            return
        beats = [self._folder / STATE / f"host-{number}.beat" for number in range(len(self.hosts))]
        for beat in beats:  # no host counts as dead before it was asked
            beat.touch()
        problems = []
        for number, (name, beat) in enumerate(zip(self.hosts, beats, strict=True)):
            if (problem := self._start(name, number)) is not None:
                beat.unlink(missing_ok=True)
                problems.append(f"{name}: {problem}")
                note(f"{name}: not used: {problem}")
        if len(problems) == len(self.hosts):
            raise MbtError(
                f"no host of the preset can be used: {'; '.join(problems)}",
                hint="try `ssh HOST true`: a key must open it without a question (`ssh-copy-id "
                "HOST`), and MBT_RUNS must be a folder that every host has at the same path",
            )

    def _start(self, host: str, number: int) -> str | None:
        """Start the runner of a host; what is wrong if it does not start."""
        folder = str(self._folder)
        options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}")
        runner = (self.python or sys.executable, f"{folder}/runner.py", folder, str(number))
        secrets = {name: os.environ[name] for name in self.pass_on if name in os.environ}
        try:
            done = subprocess.run(
                # one word for the login shell of the host
                [*self.ssh, *options, "--", host, shlex.join(runner)],
                input=json.dumps(secrets),
                capture_output=True,
                text=True,
                timeout=_START_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            return f"no command `{self.ssh[0]}` here"
        except subprocess.TimeoutExpired:
            return f"no answer for {_START_SECONDS} s"
        if done.returncode == 0:
            return None
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if "can't open file" in last or "No such file" in last:
            last += " (the runs folder and Python must have the same path on every host)"
        return last

    @classmethod
    def queued(cls, label: str, ids: Collection[str]) -> Sequence[QueuedJob]:
        return [
            QueuedJob(job_id, found.state == "running", found.why)
            for job_id, found in ssh_runner.conditions(ids)
            if found.state in ALIVE
        ]

    @classmethod
    def ended(cls, job_id: str) -> EndedJob | None:
        return cls.ended_jobs([job_id]).get(job_id)

    @classmethod
    def ended_jobs(cls, job_ids: Collection[str]) -> Mapping[str, EndedJob]:
        found = {}
        for job_id, one in ssh_runner.conditions(job_ids):
            match one.state:
                case "completed" | "failed" | "cancelled":
                    found[job_id] = EndedJob(one.state, one.why)
        return found

    @classmethod
    def gone(cls, job_id: str) -> bool:
        # a host without signs of life may still run it: only what its runner wrote is certain
        return any(found.is_certain for _, found in ssh_runner.conditions([job_id]))

    @classmethod
    def cancel(cls, job_ids: Sequence[str]) -> None:
        for job_id in map(Path, job_ids):
            try:
                ssh_runner.write_once(job_id.parent / STATE / f"{job_id.name}.cancel", {})
            except OSError as error:
                raise MbtError(f"`{job_id}` cannot be cancelled: {error.strerror}") from None

    @classmethod
    def logs(cls, job_id: str, record: Path, name: str) -> Sequence[Path]:
        folder = record / "logs"
        whole = folder / f"{name}.log"
        return [*([whole] if whole.is_file() else []), *folder.glob(f"{name}.shard-*.log")]

    @classmethod
    def doctor(cls, environment: Mapping[str, str]) -> Iterator[Finding]:
        if shutil.which("ssh", path=environment.get("PATH")) is None:
            yield absent("ssh", "ssh", "not found", "install it to use `mbt submit --ssh`")
