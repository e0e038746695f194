"""`presets/slurm/NAME.toml` to a launcher."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from mbt_cli.core.jobs import Job
from mbt_cli.errors import ManifestError, UsageError
from mbt_cli.launchers.slurm import SlurmLauncher
from mbt_cli.launchers.slurm_request import Request
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems, nearest
from mbt_cli.manifest.toml_text import merged, read_toml

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
