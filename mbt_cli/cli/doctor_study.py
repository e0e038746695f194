"""The doctor on a manifest: what it needs beside what is here."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from mbt_cli.backends.flags import find_executable
from mbt_cli.backends.llamacpp import FILE, NAME, LlamaCppBackend
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.vllm import VLLMBackend, gpus_seen
from mbt_cli.cli.machine_checks import missing_packages, pip_line
from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.findings import Finding, absent, broken, ok
from mbt_cli.core.programs import Result, Task, one_request
from mbt_cli.core.progress import Silent
from mbt_cli.engine.fetch import Needed, needed_by
from mbt_cli.engine.runner import hub_access, server_place
from mbt_cli.errors import BackendError, Interrupted, MbtError, MissingInputError, Stopped
from mbt_cli.inference.ask import ask
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.sources import HUB, is_there
from mbt_cli.plugins import installed_plugins
from mbt_cli.scores.answers import MathMatch
from mbt_cli.settings import Machine
from mbt_cli.stages.base import Model
from mbt_cli.stages.score import ScoreStage
from mbt_cli.store.hub import HubFiles, fetch_files

_TOKENS = 16
_SECONDS = 120
_QUESTION = Message(role="user", content="Is water wet? Say yes or no.")


def reply_findings(
    models: Mapping[str, Model], machine: Machine, *, starts_servers: bool
) -> Iterator[Finding]:
    """What each model says, or why it says nothing.

    Args:
        models: Models by name.
        machine: Keys and caches.
        starts_servers: Whether servers that take long and hold GPUs are started for it.
    """
    for name, model in models.items():
        if isinstance(model.backend, VLLMBackend | TransformersBackend) and not starts_servers:
            found = f"`{model.backend.kind}` was not started; --replies starts it and asks"
            yield ok("replies", name, found)
        elif not isinstance(model.backend, _WITH_SERVERS):
            yield ok("replies", name, f"`{model.backend.kind}` answers in this process")
        elif _can_be_asked(model, machine):
            yield _finding(name, model, machine)


_WITH_SERVERS = (LlamaCppBackend, OpenAIBackend, TransformersBackend, VLLMBackend)


def _can_be_asked(model: Model, machine: Machine) -> bool:
    """Whether there is its key; without one, another line says so."""
    variable = getattr(model.backend, "api_key_env", None)
    return variable is None or bool(machine.environment.get(variable, "").strip())


def _finding(name: str, model: Model, machine: Machine) -> Finding:
    try:
        reply = _ask(name, model, machine)
    except (Interrupted, Stopped):
        raise
    except MbtError as error:
        return broken("replies", name, error.message, error.hint or "mend it and look again")
    if reply.failure is None or reply.failure.startswith("empty"):
        words = f"{reply.completion_tokens or 0} tokens" if reply.failure is None else "no text"
        return ok("replies", name, f"answered within {reply.seconds:.1f} s: {words}")
    return broken("replies", name, reply.failure, _hint(reply.failure, name))


def _hint(failure: str, name: str) -> str:
    if failure.startswith("connection"):
        return "start the server, or correct `base_url`"
    if failure.startswith("timeout"):
        return "look at the server: it takes longer for 16 tokens than a study should wait"
    return f"change what the endpoint complains of in the sampling or `request` of {name}"


def _ask(name: str, model: Model, machine: Machine) -> Reply:
    """One request with the model's own sampling, but for its length."""
    seconds = min(_SECONDS, model.run.request_timeout_seconds)
    run = model.run.model_copy(
        update={"max_attempts": 1, "request_timeout_seconds": seconds, "server_restarts": 0}
    )
    place = server_place(machine, machine.cache / "doctor", run)
    with tempfile.TemporaryDirectory() as folder:
        batch = RequestBatch(
            tasks=lambda: [Task("doctor", 0, one_request("doctor", (_QUESTION,)))],
            total=1,
            purpose="doctor",
            study_seed=0,
            identity={"name": name},
            sampling={},
            body={**model.sampling.body(), **model.request},
            open=model.backend.open,
            place=replace(place, log=place.log.with_name(f"{name}.server.log")),
            max_tokens=_TOKENS,
            run=run,
            sends_seed=model.sampling.seedable,
            model_id=model.id,
        )
        results: list[Result] = []
        ask(batch, Path(folder), Silent(), emit=results.append)
        return results[0].reply


_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


def stock_findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """A line for each thing that the study fetches, without asking the network."""
    try:
        needed = needed_by(manifest, machine, models=(), benchmarks=())
    except MbtError as error:
        yield broken("data", manifest.study, error.message, error.hint or "correct the manifest")
        return
    for one in needed:
        if (where := _here(one, machine)) is not None:
            yield ok("data", one.name, f"{one.what}: {where}")
            continue
        do = f"mbt data fetch {manifest.path}"
        if machine.is_offline:
            do += ", where there is a network"
            yield broken("data", one.name, f"{one.what} is not here, and mbt is offline", do)
        else:
            yield absent("data", one.name, f"{one.what} is not here; a run fetches it", do)


def _here(needed: Needed, machine: Machine) -> Path | None:
    """Where all of it is on this machine; None when something is missing."""
    if needed.request is None:
        path = machine.cache / "weights" / FILE
        return path if path.is_file() else None
    try:
        files = fetch_files(needed.request, replace(hub_access(machine), offline=True))
    except MissingInputError:
        return None
    is_whole = needed.request.type != "model" or _has_weights(files)
    return files.folder if is_whole else None


def _has_weights(files: HubFiles) -> bool:
    """Whether every shard is there: a broken download leaves a folder with some."""
    names = {str(path.relative_to(files.folder)) for path in files.paths}
    if _INDEX in names:
        index = orjson.loads((files.folder / _INDEX).read_bytes())
        return set(index["weight_map"].values()) <= names
    return any(name.endswith(_WEIGHTS) for name in names)


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
    return [*lines, *installed_plugins().problems]


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
