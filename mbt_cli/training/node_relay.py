r"""Relays SIGTERM to all processes of a training on several nodes of a Slurm job.

    python -m mbt_cli.training.node_relay head srun OPTIONS \
        python -m mbt_cli.training.node_relay node COMMAND

On SIGTERM `srun` kills its tasks at once; SIGUSR1 it forwards to every process of them. So the
head sends it SIGUSR1, and on each node the command, which ignores SIGUSR1, gets SIGTERM.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from mbt_cli.core.job_folders import temporary_folder

RANK = "$SLURM_NODEID"
"""A word of the command that each node replaces with its own number."""


def relay(command: Sequence[str], number: signal.Signals) -> int:
    """Run the command and send it `number` on SIGTERM or SIGUSR1; returns its exit code."""

    def before_exec() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    # in its own process group, which signals to this one do not reach; this process has one
    # thread, so running code between fork and exec is safe
    child = subprocess.Popen(command, process_group=0, preexec_fn=before_exec)
    for received in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(received, lambda *_: child.send_signal(number))
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    place, words = sys.argv[1], sys.argv[2:]
    if place == "head":
        sys.exit(relay(words, signal.SIGUSR1))
    rank = os.environ["SLURM_NODEID"]
    with temporary_folder(os.environ):
        code = relay([rank if word == RANK else word for word in words], signal.SIGTERM)
    sys.exit(code)
