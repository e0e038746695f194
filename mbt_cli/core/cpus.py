"""How many processors this process may use."""

import math
import os
from contextlib import suppress
from pathlib import Path

from mbt_cli.core.memory import control_groups


def usable_cpus(root: Path = Path("/")) -> int:
    """Processors of this process, of its Slurm job on this machine, and of its control groups.

    Args:
        root: Where `proc` and `sys` are.
    """
    has_set = hasattr(os, "sched_getaffinity")
    usable = len(os.sched_getaffinity(0)) if has_set else os.cpu_count() or 1
    with suppress(KeyError, ValueError):  # not every Slurm binds its jobs to processors
        usable = min(usable, int(os.environ["SLURM_CPUS_ON_NODE"]))
    for group in control_groups(root):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
            usable = min(usable, math.ceil(int(quota) / int(period)))  # `max` means no limit
    return max(1, usable)
