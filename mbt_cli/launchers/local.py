"""This machine: jobs run here, as many at once as the user allows and the free GPUs admit."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr

from mbt_cli.core.gpus import GPUs, gpus_at_hand
from mbt_cli.core.jobs import EndedJob, Job, QueuedJob
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Launcher

_POLL_SECONDS = 0.2
_SMI_SECONDS = 20
_FREE_MIB = 1_000


class LocalLauncher(Launcher):
    """Run jobs on this machine, in this process; its queue ends with the process."""

    has_presets: ClassVar[bool] = False

    kind: Literal["local"] = "local"
    """Name of the launcher."""
    at_once: int = Field(default=1, ge=1)
    """Number of jobs that run at the same time."""

    _jobs: list[tuple[Job, Path]] = PrivateAttr(default_factory=list)

    def gpus(self) -> GPUs | None:
        """The GPUs of this machine, divided among the jobs that run at the same time."""
        found = gpus_at_hand(os.environ)
        if found is None or not found.count:
            return None
        return replace(found, count=max(1, found.count // self.at_once))

    def render(self, job: Job) -> str:
        context, argv = job.context, job.argv
        command = shlex.join([*context.mbt, *argv[1:]] if argv[0] == "mbt" else argv)
        lines = [
            "#!/bin/bash",
            "set -euo pipefail",
            f"# One job of the study {context.study} on this machine, written by `mbt submit`.",
            f"cd -- {shlex.quote(str(context.workdir))}",
            *(f"export {k}={shlex.quote(v)}" for k, v in sorted(context.environment.items())),
        ]
        if job.shards == 1:
            return "\n".join([*lines, f"exec {command}"]) + "\n"
        loop = f"for shard in $(seq 1 {job.shards}); do"
        body = f'  {command} --shard "$shard/{job.shards}"'
        return "\n".join([*lines, loop, body, "done"]) + "\n"

    def submit(self, job: Job, script: Path, *, after: Sequence[str]) -> str:
        """Keep the job for `finish`, which reads its needs from the job; it gets no id."""
        self._jobs.append((job, script))
        return ""

    def finish(self, note: Callable[[str], None]) -> None:
        """Run every job when the jobs that it needs have ended and enough GPUs are free.

        Raises:
            StageError: A job failed; jobs that need it made what they could.
        """
        waiting, gpus = list(self._jobs), _free_gpus()
        free = list(gpus)
        names = {job.id for job, _ in waiting}
        running: dict[str, tuple[subprocess.Popen[bytes], list[str]]] = {}
        ended, failed = set[str](), list[str]()
        try:
            while waiting or running:
                for job, script in list(waiting):
                    wanted = min(job.gpus, len(gpus))
                    if (
                        names.intersection(job.needs) <= ended
                        and len(running) < self.at_once
                        and wanted <= len(free)
                    ):
                        own, free = free[:wanted], free[wanted:]
                        running[job.id] = (_start(script, own), own)
                        waiting.remove((job, script))
                        log = script.with_suffix(".log")
                        cells = "1 cell" if len(job.cells) == 1 else f"{len(job.cells)} cells"
                        note(f"{job.id}: started, {cells}, log {log}")
                for name, (process, own) in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[name]
                        free.extend(own)
                        ended.add(name)
                        failed.extend([name] if code else [])
                        note(f"{name}: failed with exit code {code}" if code else f"{name}: done")
                time.sleep(_POLL_SECONDS)
        finally:
            for process, _ in running.values():  # the shell of an array and the task that it runs
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            for process, _ in running.values():
                process.wait()
        if failed:
            raise StageError(
                f"{len(failed)} jobs failed ({', '.join(f'`{name}`' for name in failed)}); "
                "all others ran",
                hint=f"mbt status {self._jobs[0][0].context.study} shows the end of their logs",
            )

    @classmethod
    def queued(cls, label: str, ids: Collection[str]) -> Sequence[QueuedJob]:
        return ()

    @classmethod
    def ended(cls, job_id: str) -> EndedJob | None:
        return None

    @classmethod
    def gone(cls, job_id: str) -> bool:
        return False

    @classmethod
    def cancel(cls, job_ids: Sequence[str]) -> None:
        return

    @classmethod
    def logs(cls, job_id: str, record: Path, name: str) -> Sequence[Path]:
        log = record / "scripts" / f"{name}.log"
        return [log] if log.is_file() else []


def _start(script: Path, gpus: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the script in its own process group, with these GPUs; the log is next to the script."""
    visible = ["env", f"CUDA_VISIBLE_DEVICES={','.join(gpus)}"] if gpus else []
    with script.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [*visible, "bash", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _free_gpus() -> list[str]:
    """Indices of the GPUs whose memory is unused; those of AMD count as unused."""
    query = ("--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(
            ("nvidia-smi", *query),
            capture_output=True,
            text=True,
            timeout=_SMI_SECONDS,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        found = gpus_at_hand(os.environ)  # HIP reads CUDA_VISIBLE_DEVICES too
        is_amd = found is not None and found.source in ("amd-smi", "rocm-smi")
        return [str(n) for n in range((found.count or 0) if found and is_amd else 0)]
    rows = (line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1)
    return [index.strip() for index, used in rows if float(used) < _FREE_MIB]
