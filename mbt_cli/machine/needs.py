"""The doctor on a manifest: what it needs beside what is here."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from mbt_cli.backends.executables import find_executable
from mbt_cli.backends.llamacpp import LlamaCppBackend
from mbt_cli.backends.llamacpp_weights import NAME
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.vllm import VLLMBackend, gpus_seen
from mbt_cli.errors import BackendError
from mbt_cli.machine.findings import Finding, absent, broken, ok
from mbt_cli.machine.software import missing_packages, pip_line
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.optional import HUB, is_there
from mbt_cli.scores.math_match import MathMatch
from mbt_cli.settings import Machine
from mbt_cli.stages.score import ScoreStage
from mbt_cli.stages.work import Model

_CPU_BUILD = "VLLM_CPU_KVCACHE_SPACE"
_WANDB = "WANDB_API_KEY"


def models_of(manifest: Manifest) -> Mapping[str, Model]:
    """Every model that some cell asks or trains, by name."""
    found: dict[str, Model] = {}
    for cell in manifest.cells.values():
        for model in cell.resolution.models.values():
            found.setdefault(model.name, model)
    return found


def needed_variables(manifest: Manifest, environment: Mapping[str, str]) -> dict[str, str]:
    """Secret variables that the study cannot do without, each with who needs it."""
    needed = {
        model.backend.api_key_env: name
        for name, model in models_of(manifest).items()
        if isinstance(model.backend, OpenAIBackend) and model.backend.api_key_env
    }
    for cell in manifest.cells.values():
        recipe = cell.resolution.recipe
        is_online = recipe is not None and recipe.tracking.wandb == "online"
        if is_online and environment.get("WANDB_MODE", "online") == "online":
            needed[_WANDB] = cell.resolution.axes.get("model", cell.address)
    return needed


def notes(manifest: Manifest, environment: Mapping[str, str]) -> list[str]:
    """What is no mistake of the manifest and would still stop a run from here."""
    lines = [
        f"`{variable}` is not set here: model {name} needs it (doctor tells the rest)"
        for variable, name in needed_variables(manifest, environment).items()
        if not environment.get(variable, "").strip()
    ]
    for name, model in models_of(manifest).items():
        backend = model.backend
        if isinstance(backend, OpenAIBackend) and not urlsplit(backend.base_url).path.strip("/"):
            url = backend.base_url
            lines.append(f"model {name}: `{url}` has no path; most servers answer at `{url}/v1`")
    return lines


def need_findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """A line for each thing that a study needs to run here; hub data apart."""
    yield ok("manifest", manifest.study, f"{manifest.path}: {len(manifest.cells)} cells")
    for name, model in models_of(manifest).items():
        yield from _backend(name, model, machine.environment, manifest.path)
    yield from _training(manifest)
    yield from _scores(manifest)
    yield from _sources(manifest)


def _backend(
    name: str, model: Model, environment: Mapping[str, str], path: Path
) -> Iterator[Finding]:
    backend = model.backend
    if isinstance(backend, LlamaCppBackend):
        yield _embedded(name, backend)
    elif isinstance(backend, TransformersBackend):
        install = 'pip install "transformers[serving]" torch'
        yield _command(name, backend.place.executable, environment, install)
    elif isinstance(backend, VLLMBackend):
        yield _command(name, backend.place.executable, environment, pip_line("vllm"))
        yield _gpus(name, backend, environment, path)


def _embedded(name: str, backend: LlamaCppBackend) -> Finding:
    what = f"model {name}"
    if missing_packages("embedded"):
        return broken(
            "needs", what, "the backend `llamacpp` is not installed", pip_line("embedded")
        )
    if backend.model != NAME and not Path(backend.model).expanduser().is_file():
        return broken("needs", what, f"no file `{backend.model}`", "correct `backend.model`")
    return ok("needs", what, "the backend `llamacpp` is installed")


def _command(name: str, command: str, environment: Mapping[str, str], install: str) -> Finding:
    what = f"model {name}"
    try:
        path = find_executable(command, environment, install=install)
    except BackendError as error:
        return broken("needs", what, error.message, error.hint or install)
    return ok("needs", what, f"can be served with {path}")


def _gpus(name: str, backend: VLLMBackend, environment: Mapping[str, str], path: Path) -> Finding:
    what, wanted = f"model {name} GPUs", backend.place.tensor_parallel_size
    everything = {**environment, **backend.place.environment}
    seen = gpus_seen(everything)
    if wanted <= seen:
        return ok("needs", what, f"`place.tensor_parallel_size` is {wanted}, {seen} are here")
    if _CPU_BUILD in everything:
        return ok("needs", what, f"none: {_CPU_BUILD} says that it is a processor's build")
    lower = f"--set models.{name}.place.tensor_parallel_size={seen}" if seen else ""
    do = f"run it where they are: mbt plan {path} | mbt submit --slurm"
    return broken(
        "needs",
        what,
        f"`place.tensor_parallel_size` is {wanted}, {seen} are here",
        f"{lower}, or {do}" if lower else do,
    )


def _training(manifest: Manifest) -> Iterator[Finding]:
    """Training parts, where they are to run: this Python, or the one that is named."""
    recipes = [c.resolution.recipe for c in manifest.cells.values()]
    launches = {r.launch.python for r in recipes if r is not None}
    for python in sorted(launches, key=str):
        if python is None:
            missing = missing_packages("train")
            if missing:
                found = f"training lacks {', '.join(missing)}"
                yield broken("needs", "extra train", found, pip_line("train"))
            else:
                yield ok("needs", "extra train", "is installed")
        elif shutil.which(str(Path(python).expanduser())) is None:
            do = "correct `launch.python`"
            yield broken("needs", "training's Python", f"there is no `{python}`", do)
        else:
            yield ok("needs", "training's Python", python)


def _scores(manifest: Manifest) -> Iterator[Finding]:
    stages = [cell.stage for cell in manifest.cells.values()]
    scores = [m for s in stages if isinstance(s, ScoreStage) for m in s.metrics]
    if any(isinstance(score, MathMatch) for score in scores) and missing_packages("math"):
        found = "math_match compares unlike forms only with it"
        yield absent("needs", "extra math", found, pip_line("math"))


def _sources(manifest: Manifest) -> Iterator[Finding]:
    """Local files that stand in for stages; those of benchmarks are checked with the manifest."""
    cells = manifest.cells.values()
    for source in sorted({c.resolution.source for c in cells if c.resolution.source}):
        if not source.startswith(HUB) and not is_there(source):
            yield broken("needs", "source", f"no file or folder `{source}`", "put the data there")
    if manifest.left_out:
        count = len(manifest.left_out)
        yield ok("needs", "optional cells", f"{count} are left out: their source is not there")
