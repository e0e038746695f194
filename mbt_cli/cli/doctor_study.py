"""`mbt doctor MANIFEST`: whether a study can run on this machine.

Every part of a study checks itself (`Plugin.findings`); this file has the other checks.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import orjson

from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.findings import (
    Finding,
    absent,
    answer_of,
    broken,
    install_line,
    missing_packages,
    ok,
    pip_line,
)
from mbt_cli.core.number_text import counted
from mbt_cli.core.programs import Result, Task, one_request
from mbt_cli.core.progress import Silent
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.serving import Download
from mbt_cli.core.training_job import ChatAnswer, ChatQuestion
from mbt_cli.core.verifier import VerifierData
from mbt_cli.engine.beside import harnesses_of
from mbt_cli.engine.fetch import Needed, needed_by
from mbt_cli.engine.runner import hub_access, server_place
from mbt_cli.errors import (
    Interrupted,
    MbtError,
    MissingInputError,
    StageError,
    Stopped,
    UsageError,
)
from mbt_cli.inference.ask import ask
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.interfaces import Benchmark, HostedTrainer, Missing, Trainer
from mbt_cli.manifest.expand import HUB, source_exists
from mbt_cli.manifest.load import Manifest
from mbt_cli.plugins import installed_plugins
from mbt_cli.settings import Machine
from mbt_cli.stages.base import Model
from mbt_cli.stages.harness import check_program
from mbt_cli.stages.score import ScoreStage
from mbt_cli.stages.train import TrainStage, lacking_packages, training_python
from mbt_cli.store.hub import fetch_files

_CHAT_CHECK = "mbt_cli.training.chat_check"
_SECONDS = 120


def models_of(manifest: Manifest) -> Mapping[str, Model]:
    """Every model that a cell asks or trains, by name."""
    found: dict[str, Model] = {}
    for cell in manifest.cells.values():
        for model in cell.resolution.models.values():
            found.setdefault(model.name, model)
    return found


def needed_variables(manifest: Manifest, environment: Mapping[str, str]) -> dict[str, str]:
    """Secret variables that the study needs, each with the model that needs it."""
    needed = {
        variable: name
        for name, model in models_of(manifest).items()
        for variable in model.backend.secret_variables()
    }
    for cell in manifest.cells.values():
        recipe = cell.resolution.recipe
        is_online = recipe is not None and recipe.tracking.wandb == "online"
        if is_online and environment.get("WANDB_MODE", "online") == "online":
            needed["WANDB_API_KEY"] = cell.resolution.axes.get("model", cell.address)
    return needed


def notes(manifest: Manifest, environment: Mapping[str, str]) -> list[str]:
    """Valid settings that would make a run fail on this machine."""
    lines = [
        f"`{variable}` is not set: model {name} needs it (more: mbt doctor {manifest.path})"
        for variable, name in needed_variables(manifest, environment).items()
        if not environment.get(variable, "").strip()
    ]
    for name, model in models_of(manifest).items():
        lines += [f"model {name}: {warning}" for warning in model.backend.warnings()]
    lines += _divided(manifest)
    for name, harness in harnesses_of(manifest).items():
        try:
            check_program(name, harness, environment)
        except UsageError as error:
            lines.append(f"{error.message}: {error.hint}")
    return [*lines, *package_notes(manifest), *installed_plugins().problems]


def _divided(manifest: Manifest) -> Iterator[str]:
    """Models whose layers GPUs share while they answer benchmarks with verified answers."""
    asked: dict[tuple[str, int], set[str]] = {}
    for cell in manifest.cells.values():
        found, model = cell.resolution, cell.resolution.models.get("model")
        is_verified = found.benchmark is not None and found.benchmark.verifier != Benchmark.verifier
        if cell.kind != "rollout" or model is None or found.source is not None or not is_verified:
            continue
        if (gpus := model.backend.divides_layers()) > 1:
            asked.setdefault((model.name, gpus), set()).add(found.axes["benchmark"])
    for (name, gpus), benchmarks in asked.items():
        yield (
            f"model {name}: `place.tensor_parallel_size = {gpus}` in rollouts of "
            f"{', '.join(sorted(benchmarks))}. GPUs that share a layer add in another order: "
            "greedy replies differ between runs, and a model of 1.7B has scored 10% on "
            "minerva_math in place of 28%. Evaluate on one GPU, and use the others as replicas: "
            f"`tensor_parallel_size = 1, flags = {{ data_parallel_size = {gpus} }}`"
        )


def package_notes(manifest: Manifest) -> list[str]:
    """Packages that trainings need and their Python lacks, each with the line to type."""
    lines = [
        f"stage {stage}: `{setting}` needs `{package}`, which {python} lacks: "
        f"{install_line(package, python)}"
        for stage, setting, package, python in _lacking(manifest)
    ]
    return [*lines, *(f"training: {m.what} ({m.do})" for m in _missing_for_training(manifest))]


def need_findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """What the study needs to run here, except downloads."""
    yield ok("manifest", manifest.study, f"{manifest.path}: {counted(len(manifest.cells), 'cell')}")
    cells = manifest.cells.values()
    parts = {name: model.backend for name, model in models_of(manifest).items()}
    found = [f for name, part in parts.items() for f in part.findings(name, machine.environment)]
    metrics = {
        metric.kind: metric
        for cell in cells
        if isinstance(cell.stage, ScoreStage)
        for metric in cell.stage.metrics
    }
    found += [f for name, one in metrics.items() for f in one.findings(name, machine.environment)]
    for finding in found:
        yield replace(finding, do=finding.do.replace("MANIFEST", str(manifest.path)))
    trained = [c.resolution for c in cells if not isinstance(c.resolution.trainer, HostedTrainer)]
    recipes = [resolution.recipe for resolution in trained]
    for python in sorted({r.launch.python for r in recipes if r is not None}, key=str):
        yield _training_finding(python)
    for stage, setting, package, python in _lacking(manifest):
        lacks = f"`{setting}` needs `{package}`, which {python} lacks"
        yield broken("needs", f"stage {stage}", lacks, install_line(package, python))
    yield from _chat_findings(manifest, machine)
    for missing in _missing_for_training(manifest):
        yield broken("needs", "training", missing.what, missing.do)
    yield from _harness_findings(manifest, machine)
    for source in sorted({c.resolution.source for c in cells if c.resolution.source}):
        if not source.startswith(HUB) and not source_exists(source):
            yield broken("needs", "source", f"no file or folder `{source}`", "put the data there")
    if count := len(manifest.left_out):
        yield ok("needs", "optional cells", f"{count} are skipped: their source does not exist")


def _harness_findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """Whether the programs of harnesses are here, with their keys."""
    for name, harness in harnesses_of(manifest).items():
        try:
            path = check_program(name, harness, machine.environment)
        except UsageError as error:
            yield broken("needs", f"harness {name}", error.message, error.hint or "")
        else:
            yield ok("needs", f"harness {name}", path)


def _trainings(manifest: Manifest) -> Iterator[tuple[str, Recipe, Trainer, str]]:
    """Stage, recipe, method and Python of each training."""
    for cell in manifest.cells.values():
        recipe, trainer = cell.resolution.recipe, cell.resolution.trainer
        if recipe is None or trainer is None or cell.resolution.source is not None:
            continue
        try:
            python = training_python(recipe.launch)
        except StageError:
            continue  # has a finding of its own
        yield cell.address.partition("/")[0], recipe, trainer, python


def _lacking(manifest: Manifest) -> Iterator[tuple[str, str, str, str]]:
    """Stage, setting, package and Python where a training's Python lacks a package."""
    seen: list[tuple[str, Recipe]] = []
    for stage, recipe, _, python in _trainings(manifest):
        if (stage, recipe) in seen:
            continue
        seen.append((stage, recipe))
        for setting, package in lacking_packages(recipe, python):
            yield stage, setting, package, python


def _missing_for_training(manifest: Manifest) -> list[Missing]:
    """What methods find missing in the Python that trains, each once."""
    found = (trainer.missing(recipe, python) for _, recipe, trainer, python in _trainings(manifest))
    return list(dict.fromkeys(one for one in found if one is not None))


def _chat_findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """Whether the models that are trained on traces can write them.

    A model that is not on this machine yet has no finding, nor has a Python without the packages.
    """
    seen: set[str] = set()
    for cell in manifest.cells.values():
        resolution, stage = cell.resolution, cell.stage
        if not isinstance(stage, TrainStage) or stage.target != "trace" or not resolution.recipe:
            continue
        model = resolution.models["model"]
        download = model.backend.download(machine.cache)
        if model.name in seen or (download and not download.path.is_file()):
            continue
        seen.add(model.name)
        try:
            python = training_python(resolution.recipe.launch)
            weights = model.backend.weights(server_place(machine, machine.cache, model.run))
        except MbtError:
            continue  # has a finding of its own
        if weights is not None:
            prompt = resolution.templates["prompt"].fill({"question": "Q", "documents": "D"})
            question = ChatQuestion(
                weights=weights,
                template=model.template_arguments(),
                messages=[dict(message) for message in prompt],
            )
            yield from _chat_finding(f"traces of {model.name}", question, python, machine)


def _chat_finding(
    what: str, question: ChatQuestion, python: str, machine: Machine
) -> Iterator[Finding]:
    command = [python, "-m", _CHAT_CHECK, question.model_dump_json()]
    environment = {**machine.environment, "HF_HUB_OFFLINE": "1"}
    answered = answer_of(command, environment, seconds=_SECONDS)
    if answered is None or answered.returncode != 0:
        return
    answer = ChatAnswer.model_validate_json(answered.stdout.splitlines()[-1])
    if answer.problem is not None:
        yield broken("needs", what, f"cannot be trained: {answer.problem}", answer.hint or "")
    elif answer.reply is not None:
        yield ok("needs", what, f"are written as {answer.reply!r}")


def _training_finding(python: str | None) -> Finding:
    """Whether the training packages are installed, or the Python that has them exists."""
    if python is None:
        if missing := missing_packages("train"):
            found = f"training lacks {', '.join(missing)}"
            return broken("needs", "extra train", found, pip_line("train"))
        return ok("needs", "extra train", "installed")
    if shutil.which(str(Path(python).expanduser())) is None:
        return broken("needs", "training's Python", f"no `{python}`", "correct `launch.python`")
    return ok("needs", "training's Python", python)


def data_findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """Whether the downloads of the study are cached, without using the network."""
    try:
        needed = needed_by(manifest, machine, models=(), benchmarks=())
    except MbtError as error:
        yield broken("data", manifest.study, error.message, error.hint or "correct the manifest")
        return
    for one in needed:
        do = f"mbt data fetch {manifest.path}"
        if isinstance(one.files, VerifierData):
            yield _data_finding(one, one.files, do)
        elif (path := _cached_path(one, machine)) is not None:
            yield ok("data", one.name, f"{one.what}: {path}")
        elif machine.is_offline:
            found = f"{one.what} is not cached, and mbt is offline"
            yield broken("data", one.name, found, f"{do}, with a network")
        else:
            yield absent("data", one.name, f"{one.what} is not cached; a run fetches it", do)


def _data_finding(needed: Needed, data: VerifierData, do: str) -> Finding:
    """Whether data of a verifier are here; a run never fetches them."""
    try:
        path = data.find()
    except MbtError as error:
        return broken("data", needed.name, error.message, (error.hint or "").removeprefix("run "))
    if path is not None:
        return ok("data", needed.name, f"{needed.what}: {path}")
    level = broken if data.is_needed else absent
    return level("data", needed.name, f"{needed.what} is not on this machine", do)


_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


def _cached_path(needed: Needed, machine: Machine) -> Path | None:
    """Its path on this machine; None if something is missing."""
    assert not isinstance(needed.files, VerifierData)
    if isinstance(needed.files, Download):
        return needed.files.path if needed.files.path.is_file() else None
    try:
        files = fetch_files(needed.files, replace(hub_access(machine), offline=True))
    except MissingInputError:
        return None
    if needed.files.type == "model":  # an interrupted download leaves some of the shards
        names = {str(path.relative_to(files.folder)) for path in files.paths}
        if _INDEX in names:
            index = orjson.loads((files.folder / _INDEX).read_bytes())
            is_whole = set(index["weight_map"].values()) <= names
        else:
            is_whole = any(name.endswith(_WEIGHTS) for name in names)
        if not is_whole:
            return None
    return files.folder


_TOKENS = 16
_QUESTION = Message(role="user", content="Is water wet? Say yes or no.")


def reply_findings(
    models: Mapping[str, Model], machine: Machine, *, starts_servers: bool
) -> Iterator[Finding]:
    """A short reply from each model.

    Args:
        models: Models by name.
        machine: Keys and caches.
        starts_servers: Whether to start servers that need a GPU.
    """
    for name, model in models.items():
        backend = model.backend
        keys = [machine.environment.get(v, "").strip() for v in backend.secret_variables()]
        if backend.gpus() and not starts_servers:
            found = f"`{backend.kind}` was not started; --replies starts it and asks"
            yield ok("replies", name, found)
        elif not backend.has_model:
            yield ok("replies", name, f"`{backend.kind}` answers in this process")
        elif all(keys):
            yield _reply_finding(name, model, machine)  # a missing key has its own line


def _reply_finding(name: str, model: Model, machine: Machine) -> Finding:
    try:
        reply = _reply(name, model, machine)
    except (Interrupted, Stopped):
        raise
    except MbtError as error:
        return broken("replies", name, error.message, error.hint or "correct it and try again")
    if reply.failure is None or reply.failure.startswith("empty"):
        what = (
            counted(reply.completion_tokens or 0, "token") if reply.failure is None else "no text"
        )
        return ok("replies", name, f"answered within {reply.seconds:.1f} s: {what}")
    if reply.failure.startswith("connection"):
        do = "start the server, or correct `base_url`"
    elif reply.failure.startswith("timeout"):
        do = f"check the server: {_TOKENS} tokens should not take that long"
    else:
        do = f"change what the endpoint rejects in the sampling or `request` of {name}"
    return broken("replies", name, reply.failure, do)


def _reply(name: str, model: Model, machine: Machine) -> Reply:
    """One request with the model's own sampling, except its length."""
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
