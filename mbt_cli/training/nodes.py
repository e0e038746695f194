"""Keeps a training over the nodes of a Slurm job in order: SIGTERM has to reach all its processes.

    python -m mbt_cli.training.nodes head srun OPTIONS python -m mbt_cli.training.nodes node COMMAND

`srun` kills its tasks at once when it gets SIGTERM, and passes SIGUSR1 on to every process of
them. So the head gives it SIGUSR1, and on each node the command, which ignores that, gets SIGTERM.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

RANK = "$SLURM_NODEID"
"""A word of the command that each node replaces by its own number."""


def relay(command: Sequence[str], number: signal.Signals) -> int:
    """Run the command and send it `number` for each SIGTERM or SIGUSR1; gives its exit code."""

    def before_exec() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    # in a group of its own, where signals to this one's group do not reach it; this process has
    # one thread, so running code between fork and exec is safe
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
    sys.exit(relay([rank if word == RANK else word for word in words], signal.SIGTERM))
