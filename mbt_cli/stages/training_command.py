"""The command that trains: plain Python, `accelerate launch`, or that on every node of a job."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from mbt_cli.core.chat import Json
from mbt_cli.core.recipe import Launch
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.errors import StageError

_LAUNCH = "accelerate.commands.launch"
_NODES = "mbt_cli.training.nodes"
_SRUN = ("srun", "--overlap", "--ntasks-per-node=1", "--kill-on-bad-exit=1")


def training_command(launch: Launch, job: TrainingJob, environment: Mapping[str, str]) -> list[str]:
    """The words of the command, none of them secret.

    Args:
        launch: How the recipe wants the process started.
        job: The training; its file is what the process reads.
        environment: What `$NAME` in a flag is read from.

    Raises:
        StageError: There is no such Python, a flag names a variable that is not set, or
            `num_machines` is no number.
    """
    python = _python(launch)
    module = ["-m", f"mbt_cli.training.{job.method}", str(Path(job.folder) / "job.json")]
    if launch.accelerate is None:
        return [python, *module]
    flags = {key: _filled(value, environment) for key, value in launch.flags.items()}
    if launch.processes is not None:
        flags["num_processes"] = launch.processes
    nodes = _count(flags.get("num_machines", 1))
    if nodes == 1 or "machine_rank" in flags:
        return [python, "-m", _LAUNCH, *_spelled(flags), *module]
    flags["machine_rank"] = "$SLURM_NODEID"  # which every node knows by itself
    on_node = [python, "-m", _NODES, "node", python, "-m", _LAUNCH, *_spelled(flags), *module]
    return [python, "-m", _NODES, "head", *_SRUN, f"--nodes={nodes}", *on_node]


def _spelled(flags: Mapping[str, Json]) -> list[str]:
    """As `accelerate launch` takes them: a switch that is off is left out."""
    words: list[str] = []
    for key, value in flags.items():
        if value is True:
            words.append(f"--{key}")
        elif value is not False:
            words += [f"--{key}", str(value)]
    return words


def _count(told: Json) -> int:
    try:
        return int(told)
    except (TypeError, ValueError):
        raise StageError(f"`num_machines` is `{told}`, which is no number of machines") from None


def _filled(value: Json, environment: Mapping[str, str]) -> Json:
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    found = environment.get(value[1:])
    if found is None:
        raise StageError(
            f"the accelerate preset reads `{value}`, which the environment does not have",
            hint="`mbt submit --slurm` sets it where the preset's `[train_job]` has several "
            "nodes; or say the flag under `launch.flags`",
        )
    return found


def _python(launch: Launch) -> str:
    if launch.python is None:
        return sys.executable
    found = shutil.which(str(Path(launch.python).expanduser()))
    if found is None:
        raise StageError(
            f"there is no Python `{launch.python}` to train with",
            hint='`launch.python` names one whose environment has `pip install "mbt-cli[train]"`',
        )
    # not resolved: the Python of an environment is a link, and the link's place counts
    return str(Path(found).absolute())
