"""This machine: scripts that run here, as many at once as there is room for."""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mbt_cli.core.jobs import Job
from mbt_cli.errors import MbtError
from mbt_cli.interfaces import Launcher

_SMI_SECONDS = 20
_FREE_MIB = 1_000


class LocalLauncher(Launcher):
    """Run jobs on this machine."""

    kind: Literal["local"] = "local"
    """Names the launcher."""

    def render(self, job: Job) -> str:
        if job.around is None:
            raise MbtError(f"job `{job.id}` has no place to run in")
        around = job.around
        argv = job.argv
        command = shlex.join([*around.mbt, *argv[1:]] if argv[0] == "mbt" else argv)
        lines = [
            "#!/bin/bash",
            "set -euo pipefail",
            f"# One job of the study {around.study} on this machine, written by `mbt submit`.",
            f"cd -- {shlex.quote(str(around.workdir))}",
            *(f"export {k}={shlex.quote(v)}" for k, v in sorted(around.environment.items())),
        ]
        if job.shards == 1:
            return "\n".join([*lines, f"exec {command}"]) + "\n"
        loop = f"for shard in $(seq 1 {job.shards}); do"
        body = f'  {command} --shard "$shard/{job.shards}"'
        return "\n".join([*lines, loop, body, "done"]) + "\n"

    def submit(self, script: Path, *, after: Sequence[str]) -> str:
        """Start the script now, in a group of its own; gives its process id.

        Args:
            script: Its output goes beside it, with the ending `.log`.
            after: Not looked at: whoever starts local jobs waits for what they need.
        """
        return str(self.start(script, ()).pid)

    def start(self, script: Path, gpus: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the script now; it sees these GPUs alone.

        Args:
            script: Its output goes beside it, with the ending `.log`.
            gpus: Indices as nvidia-smi shows them.
        """
        visible = ["env", f"CUDA_VISIBLE_DEVICES={','.join(gpus)}"] if gpus else []
        with script.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                [*visible, "bash", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def free_gpus() -> list[str]:
    """Indices of GPUs whose memory nobody uses; none where there is no nvidia-smi."""
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
        return []
    rows = (line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1)
    return [index.strip() for index, used in rows if float(used) < _FREE_MIB]
