"""`presets/slurm/NAME.toml` to a launcher."""

from pydantic import ValidationError

from mbt_cli.errors import ManifestError, UsageError
from mbt_cli.launchers.slurm import Request, SlurmLauncher
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems, nearest
from mbt_cli.manifest.toml_text import merged, read_toml

_JOBS = ("gpu_job", "small_job")


def slurm_preset(name: str, presets: PresetFolders) -> SlurmLauncher:
    """The launcher that a preset describes.

    `[job]` holds what `[gpu_job]` and `[small_job]` share, so that a cluster is said once.

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
    for job in _JOBS:
        tree[job] = merged(shared, tree.get(job, {}))
    problems = Problems()
    for job in _JOBS:
        for key, value in tree[job].items():
            if value == "":
                what = "is left blank: fill it in, or leave the line out for the cluster's default"
                problems.add(f"{job}.{key}", what)
    try:
        launcher = SlurmLauncher.model_validate(tree) if not problems else None
    except ValidationError as error:
        launcher = None
        fields = {*SlurmLauncher.model_fields, *Request.model_fields, "job"}
        problems.add_validation("preset", error, fields)
    if launcher is None:
        raise ManifestError(str(path), problems.all())
    return launcher
