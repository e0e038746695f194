"""Train: a training method runs in its own process; the artifact is a model."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Json
from mbt_cli.core.fingerprint import part_of, spec_of
from mbt_cli.core.lineage_notes import FUNNEL, TRAINING
from mbt_cli.core.number_text import number_text
from mbt_cli.core.plugin import RunOnly
from mbt_cli.core.recipe import Launch, Recipe
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.training_job import (
    CHECKPOINT,
    LOG,
    PROBLEM,
    STOPPED,
    SUMMARY,
    TrainingJob,
    Weights,
    log_lines,
)
from mbt_cli.core.verifier import verifier_reference
from mbt_cli.errors import StageError, Stopped
from mbt_cli.inference.server import ServerProcess
from mbt_cli.interfaces import Benchmark, Trainer
from mbt_cli.stages.base import (
    VERIFIED,
    AxisValues,
    InputReference,
    InputRule,
    Keep,
    Resolution,
    Stage,
    StageInput,
    Work,
)
from mbt_cli.stages.checkpoints import checkpoint_of
from mbt_cli.stages.training_data import chosen_examples, question_examples
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.hub import HubRequest, fetch_files
from mbt_cli.store.locks import held_by_children

_TEMPLATE_ARGUMENTS = "chat_template_kwargs"
"""The one field of a model's `request` that a training reads."""
_TRACES = frozenset({"synthesize", "rewrite"})
_HUB = "hub:"
_POLL_SECONDS = 0.5
_CHECKPOINT_SECONDS = 300.0
"""Time that the process has to write a checkpoint after a signal to stop."""
_LAUNCHER = "accelerate.commands.launch"
_LAUNCHER_CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: "NO"
num_processes: 1
use_cpu: false
debug: false
"""
"""Without a file of its own, accelerate reads the user's default configuration."""
_STRATEGIES = frozenset({"multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "tpu", "cpu"})
_NOT_INHERITED = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")
_RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"})
"""Variables of the shell that would make a plain process wait for others."""
_NODES = "mbt_cli.training.node_relay"
_SRUN = ("srun", "--overlap", "--ntasks-per-node=1", "--kill-on-bad-exit=1")
_CURVE = ("step", "loss", "reward", "kl", "grad_norm", "learning_rate", "completion_length")
_MISSING_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_MEMORY_KILL = 137
_TAIL_LINES = 15


class TrainStage(Stage):
    """Train a model on rollouts, traces or rewards."""

    kind: Literal["train"] = "train"
    preset: str | None = None
    """Name of a file in presets/train/: the method and its settings."""
    data: StageInput | None = None
    """Rollouts or traces to train on."""
    target: Literal["reply", "trace"] | None = None
    """`reply`: the raw rollout; `trace`: a think block with the trace, then the gold answer."""
    prompt: str = "answer"
    """Template of the questions that the model learns to answer."""
    keep: Keep | None = None
    """Which rows are trained on."""
    max_samples: int | None = Field(default=None, ge=1)
    """Maximum number of rollouts per question."""
    max_traces: int | None = Field(default=None, ge=1)
    """Maximum number of traces per rollout."""
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Stage of `data` to its share. The largest mixture with these shares is drawn by the seed;
    by default all rows of all stages are used."""
    questions: dict[str, AxisValues] | None = None
    """Axes of the questions for reinforcement learning."""
    reward: str | dict[str, float] | None = None
    """Name of the reward to maximise, or several with their weights."""
    start: StageInput | None = None
    """Train stage whose checkpoint is trained further; by default the model itself is trained."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Settings merged into the preset's key by key: `batch_size`, `tuning`, `max_length`, ..."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """TRL's settings, merged into the preset's key by key."""
    lora: dict[str, Any] = Field(default_factory=dict)
    """PEFT's settings, merged into the preset's key by key."""
    launch: Annotated[dict[str, Any], RunOnly] = Field(default_factory=dict)
    """The Python and the accelerate preset that run it."""
    tracking: Annotated[dict[str, Any], RunOnly] = Field(default_factory=dict)
    """Weights & Biases, TensorBoard."""

    summary: ClassVar[str] = "train a model on traces or rewards"
    axes: ClassVar[tuple[str, ...]] = ("model",)
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "data": InputRule(kinds=("rollout", "synthesize", "rewrite"), with_questions=True),
        "questions": InputRule(kinds=("questions",)),
        "start": InputRule(kinds=("train",)),
    }
    models: ClassVar[tuple[str, ...]] = ("model",)
    prompts: ClassVar[tuple[str, ...]] = ("prompt",)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "documents"})
    resolved: ClassVar[tuple[str, ...]] = ("preset", "recipe", "trainer", "lora", "reward")

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.TRAINING_LOG

    def problems(self, read: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        if self.data is None:
            return
        kinds = set(read.get("data", ()))
        if self.target is None:
            yield "target", "is required with `data`: `reply` or `trace`"
        if self.target == "trace" and "rollout" in kinds:
            yield "target", "`trace` needs traces, and `data` names rollouts; use `reply`"
        if self.target == "reply" and kinds & _TRACES:
            yield "target", "`reply` needs rollouts, and `data` names traces; use `trace`"
        if self.keep in ("correct", "wrong", "answered") and kinds & _TRACES:
            yield "keep", f"`{self.keep}` applies to rollouts; traces are filtered by `gates`"
        stage = self.data.stage if isinstance(self.data, InputReference) else self.data
        stages = {stage} if isinstance(stage, str) else set(stage)
        for name in sorted(set(self.weights) - stages):
            yield f"weights.{name}", "is not a stage of `data`"
        if self.weights and (without := stages - set(self.weights)):
            yield "weights", f"has no entry for `{min(without)}`"

    def uses_verifier(self, resolution: Resolution) -> bool:
        if self.data is not None:
            return self.keep in VERIFIED
        return resolution.trainer is not None and resolution.trainer.uses_verifier()

    def part_read(self, spec: Json, resolution: Resolution) -> Json:
        return part_of(spec, partial(self._reads, resolution))

    def _reads(self, resolution: Resolution, path: str) -> bool:
        recipe, trainer = resolution.recipe, resolution.trainer
        if recipe is None or trainer is None:
            return path.startswith("source")  # an existing checkpoint is copied as it is
        match path.split("."):
            case ["models", _, "sampling" | "id", *_]:
                return False
            case ["models", _, "request", name, *_]:
                return name == _TEMPLATE_ARGUMENTS
            case ["models", role, "backend", field, *_]:
                return field not in resolution.models[role].backend.only_serves
            case ["recipe", "lora", *_]:
                return recipe.tuning != "full"
            case ["recipe", "trainer", key, *_]:
                return key not in trainer.keeps_weights()
            case _:
                return True

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        if work.resolution.source is not None:
            yield _imported(work)
            return
        if self.data is None:
            examples = question_examples(work)
        else:
            examples = chosen_examples(
                work,
                target=self.target or "reply",
                keep=self.keep,
                max_samples=self.max_samples,
                max_traces=self.max_traces,
                weights=self.weights,
            )
        yield _train(work, examples, partial(self.part_read, resolution=work.resolution))


def _imported(work: Work) -> pl.DataFrame:
    """Copy the source's checkpoint into the artifact; the log is empty."""
    source = str(work.resolution.source)
    commit = None
    if source.startswith(_HUB):
        repo, _, revision = source.removeprefix(_HUB).partition("@")
        request = HubRequest(
            repo, ("*",), revision or "main", type="model", skip=("*.md", ".git*", "*.pth")
        )
        found = fetch_files(request, work.hub)
        folder, commit = found.folder, found.commit
    else:
        folder = Path(source).expanduser()
    if not (folder / "config.json").is_file():
        raise StageError(
            f"`{folder}` is not a model folder: it has no config.json",
            hint="name the folder that `save_pretrained` wrote, with adapters merged into the "
            "model",
        )
    with writing_to(work.files):
        shutil.copytree(folder, work.files / CHECKPOINT)
    work.result.notes[TRAINING] = {"method": "external", "from": source, "revision": commit}
    return pl.DataFrame(schema=rows.TRAINING_LOG)


def _train(work: Work, examples: pl.DataFrame, part_read: Callable[[Json], Json]) -> pl.DataFrame:
    """Run the training process; the checkpoint goes into the artifact's files.

    Raises:
        StageError: The training failed; the message is the reason that the process gave.
        Stopped: A signal stopped it, and it has written a checkpoint.
    """
    recipe, trainer = work.resolution.recipe, work.resolution.trainer
    assert recipe is not None
    assert trainer is not None
    # a killed run's training process may still write its last checkpoint, and hold the GPU
    waiting = "waiting for the training process of an earlier run, which writes a checkpoint"
    lock = work.journal / "training.lock"
    with held_by_children(lock, partial(work.progress.note, waiting)) as held:
        job = _write_job(work, recipe, trainer, examples, part_read)
        folder = Path(job.folder)
        place = work.place(work.resolution.models["model"].run)
        log = place.log.with_name(place.log.name.replace("server", "train"))
        environment = {
            **launch_environment(place.environment),
            **_variables(work, recipe, log.parent),
        }
        (folder / "accelerate.yaml").write_text(_LAUNCHER_CONFIG, encoding="utf-8")
        command = training_command(recipe.launch, trainer.module, folder / "job.json", environment)
        process = ServerProcess(
            command, environment, log, grace_seconds=_CHECKPOINT_SECONDS, keep=held
        )
        try:
            step = 0
            while (code := process.exit_code()) is None:
                step = _show_progress(work, folder, step)
                time.sleep(_POLL_SECONDS)
            _show_progress(work, folder, step)
        finally:
            process.stop()
    if code != 0:
        raise _failure(code, folder, process, log)
    return _result(work, job, examples)


def _write_job(
    work: Work,
    recipe: Recipe,
    trainer: Trainer,
    examples: pl.DataFrame,
    part_read: Callable[[Json], Json],
) -> TrainingJob:
    """Write the job and its examples into the training folder.

    The folder is named by everything that decides the training, so that checkpoints are resumed
    only with the same settings and data; the folders of other trainings of this cell are removed.
    """
    resolution = work.resolution
    model = resolution.models["model"]
    weights = _start_weights(work)
    content = examples.sort(examples.columns[:4]).write_ndjson()
    template = dict(model.request.get(_TEMPLATE_ARGUMENTS, {}))
    verifiers = {
        cell.address: verifier_reference(resolution.verifier_of(cell.axes))
        for cell in work.inputs.get("questions", ())
    }
    has_own_verifier = any(v != Benchmark.verifier for v in resolution.verifiers.values())
    more = [spec_of(weights), *([verifiers] if has_own_verifier else ()), resolution.seed, content]
    spec, identity = trainer.spec(recipe), dict(model.backend.identity())
    parent = work.journal / "training"
    settings = {"recipe": spec, "models": {"model": {"backend": identity}}}
    folder = parent / sha256_of([part_read(settings), template, *more])[:16]
    older = parent / sha256_of([spec, identity, *more])[:16]  # as mbt 0.2 named it
    begun = older / "job.json"
    if begun.is_file() and orjson.loads(begun.read_bytes())["template"] == template:
        older.rename(folder)
    if parent.is_dir():
        for other in parent.iterdir():
            if other.name != folder.name:
                shutil.rmtree(other)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROBLEM).unlink(missing_ok=True)
    examples.write_parquet(folder / "examples.parquet")
    job = TrainingJob(
        address=resolution.address,
        study=resolution.study,
        weights=weights,
        template=template,
        recipe=recipe,
        method=trainer.model_dump(mode="json", exclude={"kind"}),
        seed=int(recipe.trainer.get("seed", resolution.seed)) % 2**31,
        examples=str(folder / "examples.parquet"),
        folder=str(folder.absolute()),
        files=str(work.files.absolute()),
        verifiers=verifiers,
    )
    write_atomically(folder / "job.json", job.model_dump_json(indent=2).encode())
    return job


def _start_weights(work: Work) -> Weights:
    if start := work.inputs.get("start", ()):
        return checkpoint_of(start[0])
    model = work.resolution.models["model"]
    weights = model.backend.weights(work.place(model.run))
    if weights is None:
        raise StageError(
            f"the model `{model.name}` cannot be trained: its backend "
            f"`{model.backend.kind}` has no weights",
            hint="use a backend that loads weights on this machine",
        )
    return weights


def _variables(work: Work, recipe: Recipe, logs: Path) -> dict[str, str]:
    """Environment variables for the training's libraries."""
    variables = {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TQDM_DISABLE": "1",
        # by default torch kills processes that still write their checkpoint after 30 s
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": f"{_CHECKPOINT_SECONDS:.0f}",
    }
    tracking = recipe.tracking
    if tracking.wandb != "off":
        axes = [f"{axis}={value}" for axis, value in work.resolution.axes.items()]
        variables["WANDB_PROJECT"] = tracking.project
        variables["WANDB_RUN_GROUP"] = tracking.group or work.resolution.study
        variables["WANDB_TAGS"] = ",".join(axes if tracking.tags is None else tracking.tags)
        variables["WANDB_DIR"] = str(logs.absolute())
        if tracking.wandb == "offline" or os.environ.get("WANDB_MODE") not in (
            "offline",
            "disabled",
        ):
            variables["WANDB_MODE"] = tracking.wandb
    if tracking.tensorboard:
        variables["TENSORBOARD_LOGGING_DIR"] = str((logs / "tensorboard").absolute())
    if work.hub.offline:
        variables["HF_HUB_OFFLINE"] = "1"
    return {**variables, **recipe.launch.environment}


def launch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables of accelerate, which would change how a training runs.

    Only `launch.environment` sets them.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_NOT_INHERITED) and name not in _RANKS
    }


def training_command(
    launch: Launch, module: str, job: Path, environment: Mapping[str, str]
) -> list[str]:
    """The command of the training process; it holds no secret.

    Args:
        launch: How the process is started.
        module: The module that trains.
        job: File of the training job, which the process reads; `accelerate.yaml` lies beside it.
        environment: Values for flags such as `$NAME`.

    Raises:
        StageError: The Python does not exist, a flag names a variable that is not set, or
            `num_machines` is not a number.
    """
    python = _python(launch)
    training = ["-m", module, str(job)]
    if launch.accelerate is None:
        return [python, *training]
    flags = {key: _substituted(value, environment) for key, value in launch.flags.items()}
    if launch.processes is not None:
        flags["num_processes"] = launch.processes
    try:
        nodes = int(flags.get("num_machines", 1))
    except (TypeError, ValueError):
        message = f"`num_machines` is `{flags['num_machines']}`, which is not a whole number"
        raise StageError(message) from None
    is_spread = str(flags.get("num_processes", 1)) != "1"
    if is_spread and not any(flags.get(strategy) for strategy in _STRATEGIES):
        flags["multi_gpu"] = True
    flags = {"config_file": str(job.with_name("accelerate.yaml")), **flags}
    if nodes == 1 or "machine_rank" in flags:
        return [python, "-m", _LAUNCHER, *_flag_words(flags), *training]
    flags["machine_rank"] = "$SLURM_NODEID"  # substituted on each node
    on_node = [python, "-m", _NODES, "node", python, "-m", _LAUNCHER, *_flag_words(flags)]
    return [python, "-m", _NODES, "head", *_SRUN, f"--nodes={nodes}", *on_node, *training]


def _python(launch: Launch) -> str:
    if launch.python is None:
        return sys.executable
    found = shutil.which(str(Path(launch.python).expanduser()))
    if found is None:
        raise StageError(
            f"`launch.python` is `{launch.python}`, which does not exist",
            hint='name the Python of an environment with `pip install "mbt-cli[train]"`',
        )
    # not resolved: an environment's Python is a link, and its location selects the environment
    return str(Path(found).absolute())


def _substituted(value: Json, environment: Mapping[str, str]) -> Json:
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    found = environment.get(value[1:])
    if found is None:
        raise StageError(
            f"the accelerate preset reads `{value}`, which is not set in the environment",
            hint="`mbt submit --slurm` sets it if the preset's `[train_job]` has several nodes; "
            "or set the flag in `launch.flags`",
        )
    return found


def _flag_words(flags: Mapping[str, Json]) -> list[str]:
    """Flags as `accelerate launch` takes them: a switch that is off is omitted."""
    words: list[str] = []
    for key, value in flags.items():
        if value is True:
            words.append(f"--{key}")
        elif value is not False:
            words += [f"--{key}", str(value)]
    return words


def _show_progress(work: Work, folder: Path, shown: int) -> int:
    """Report steps that are new in the log; returns the last one."""
    lines = _log(folder)
    if not lines or lines[-1]["step"] <= shown:
        return shown
    last = lines[-1]
    step: int = last["step"]
    if shown == 0:
        work.progress.start(work.resolution.address, last.get("max_steps"))
    pace = last.get("tokens_per_second") or 0
    loss = number_text(last.get("loss"), decimals=4)
    work.progress.advance(done=step - shown)
    work.progress.note(
        f"step {step} of {last.get('max_steps')}: loss {loss}, {pace:,.0f} tokens/s, "
        f"{last.get('seconds_left', 0):,.0f} s left"
    )
    return step


def _log(folder: Path) -> list[dict[str, Any]]:
    path = folder / LOG
    return log_lines(path.read_bytes()) if path.is_file() else []


def _failure(code: int, folder: Path, process: ServerProcess, log: Path) -> Exception:
    if code == STOPPED:
        return Stopped("the training was stopped; its last step is saved in a checkpoint")
    if (folder / PROBLEM).is_file():
        problem = orjson.loads((folder / PROBLEM).read_bytes())
        return StageError(problem["message"], hint=problem["hint"])
    if code == _MEMORY_KILL:
        return StageError(
            "the training process was killed, most likely because memory ran out",
            hint="lower `recipe.device_batch_size` (the batch stays the same), set "
            '`tuning = "lora"`, or request more memory; the same command resumes',
        )
    tail = process.tail(_TAIL_LINES)
    if missing := _MISSING_PACKAGE.search(tail):
        return StageError(
            f"the Python that trains has no package `{missing[1]}`",
            hint='pip install "mbt-cli[train]", or name the Python of another environment in '
            "`launch.python`",
        )
    return StageError(
        f"the training process ended with code {code}:\n{tail}",
        hint=f"the whole log is `{log}`; the same command resumes from the last checkpoint",
    )


def _result(work: Work, job: TrainingJob, examples: pl.DataFrame) -> pl.DataFrame:
    """The log as rows; the summary goes into the notes."""
    folder = Path(job.folder)
    if not (work.files / CHECKPOINT / "config.json").is_file():
        raise StageError("the training ended without a checkpoint")
    lines = _log(folder)
    summary = orjson.loads((folder / SUMMARY).read_bytes())
    work.result.notes[FUNNEL] = {
        "rows": examples.height,
        "chosen": int(examples["dropped"].is_null().sum()),
        "trained": summary["rows"],
    }
    curve = [{name: line.get(name) for name in _CURVE} for line in lines]
    work.result.notes[TRAINING] = {**summary, "curve": curve}
    model = work.resolution.models["model"]
    work.result.model = {
        "name": model.name,
        "role": "model",
        **model.spec(),
        "weights": spec_of(job.weights),
    }
    return pl.DataFrame(
        [{name: line.get(name) for name in rows.TRAINING_LOG} for line in lines],
        schema=rows.TRAINING_LOG,
        strict=False,
    )
