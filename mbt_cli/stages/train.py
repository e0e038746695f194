"""Train: SFT or GRPO in a process of its own; what comes out is a model."""

import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Json
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.model import RunOnly
from mbt_cli.core.notes import TRAINING
from mbt_cli.core.number_text import number_text
from mbt_cli.core.recipe import Launch, Recipe
from mbt_cli.core.training_job import (
    CHECKPOINT,
    LOG,
    PROBLEM,
    STOPPED,
    SUMMARY,
    TrainingJob,
    log_lines,
)
from mbt_cli.errors import StageError, Stopped
from mbt_cli.inference.server import ServerProcess
from mbt_cli.interfaces import Trainer
from mbt_cli.stages.base import (
    AxisValues,
    InputReference,
    InputRule,
    Keep,
    Resolution,
    Stage,
    StageInput,
    Work,
)
from mbt_cli.stages.trained import checkpoint_of, weights_of
from mbt_cli.stages.training_data import Choice, asked_questions, chosen_examples
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.hub import HubRequest, fetch_files

_LAUNCH = "accelerate.commands.launch"
_NODES = "mbt_cli.training.nodes"
_SRUN = ("srun", "--overlap", "--ntasks-per-node=1", "--kill-on-bad-exit=1")


def training_command(
    launch: Launch, module: str, job: Path, environment: Mapping[str, str]
) -> list[str]:
    """The words of the command, none of them secret.

    Args:
        launch: How the recipe wants the process started.
        module: The module that trains.
        job: File of the training job, which the process reads.
        environment: What `$NAME` in a flag is read from.

    Raises:
        StageError: There is no such Python, a flag names a variable that is not set, or
            `num_machines` is no number.
    """
    python = _python(launch)
    trains = ["-m", module, str(job)]
    if launch.accelerate is None:
        return [python, *trains]
    flags = {key: _filled(value, environment) for key, value in launch.flags.items()}
    if launch.processes is not None:
        flags["num_processes"] = launch.processes
    nodes = _count(flags.get("num_machines", 1))
    if nodes == 1 or "machine_rank" in flags:
        return [python, "-m", _LAUNCH, *_spelled(flags), *trains]
    flags["machine_rank"] = "$SLURM_NODEID"  # which every node knows by itself
    on_node = [python, "-m", _NODES, "node", python, "-m", _LAUNCH, *_spelled(flags), *trains]
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


_LOOK_SECONDS = 0.5
_CHECKPOINT_SECONDS = 300.0
"""Time that the process has to write a checkpoint after it was told to stop."""
_TAIL_LINES = 15
_CURVE = ("step", "loss", "reward", "kl", "grad_norm", "learning_rate", "completion_length")
_NO_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_MEMORY_KILL = 137


def train(work: Work, examples: pl.DataFrame) -> pl.DataFrame:
    """Train on examples; leaves the checkpoint in the artifact's files and gives its log.

    Checkpoints to resume from stand beside the journal, in a folder named by everything that
    decides the training, so a run with other settings or other data never resumes them.

    Args:
        work: The running cell.
        examples: `rows.EXAMPLES`.

    Raises:
        StageError: The training failed; the message is the process's own reason.
        Stopped: It was told to stop, and has written a checkpoint.
    """
    recipe, trainer = work.resolution.recipe, work.resolution.trainer
    assert recipe is not None
    assert trainer is not None
    job = _prepared(work, examples, recipe, trainer)
    place = work.place(work.resolution.models["model"].run)
    log = place.log.with_name(place.log.name.replace("server", "train"))
    environment = {**place.environment, **_variables(work, recipe, log.parent)}
    process = ServerProcess(
        training_command(recipe.launch, trainer.module, Path(job.folder) / "job.json", environment),
        environment,
        log,
        grace_seconds=_CHECKPOINT_SECONDS,
    )
    try:
        code = _follow(process, Path(job.folder), work)
    finally:
        process.stop()
    if code != 0:
        raise _failure(code, Path(job.folder), process, log)
    return _finished(work, job, examples)


def _prepared(work: Work, examples: pl.DataFrame, recipe: Recipe, trainer: Trainer) -> TrainingJob:
    """Write the job and its examples; folders of other trainings of this cell go."""
    resolution = work.resolution
    model = resolution.models["model"]
    start = work.inputs.get("start", ())
    weights = checkpoint_of(start[0]) if start else weights_of(model, work.place(model.run))
    content = examples.sort(examples.columns[:4]).write_ndjson()
    identity = sha256_of(
        [trainer.spec(recipe), model.backend.identity(), spec_of(weights), resolution.seed, content]
    )
    parent = work.journal / "training"
    folder = parent / identity[:16]
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
        template=dict(model.request.get("chat_template_kwargs", {})),
        recipe=recipe,
        method=trainer.model_dump(mode="json", exclude={"kind"}),
        seed=int(recipe.trainer.get("seed", resolution.seed)) % 2**31,
        examples=str(folder / "examples.parquet"),
        folder=str(folder.absolute()),
        files=str(work.files.absolute()),
    )
    write_atomically(folder / "job.json", job.model_dump_json(indent=2).encode())
    return job


def _variables(work: Work, recipe: Recipe, logs: Path) -> dict[str, str]:
    """What the training's libraries read from their environment."""
    quiet = {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TQDM_DISABLE": "1",
        # unless it is told, torch kills processes that write their checkpoint after 30 s
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": f"{_CHECKPOINT_SECONDS:.0f}",
    }
    tracking = recipe.tracking
    wandb = {
        "WANDB_PROJECT": tracking.project,
        "WANDB_RUN_GROUP": tracking.group or work.resolution.study,
        "WANDB_TAGS": ",".join(
            tracking.tags
            if tracking.tags is not None
            else [f"{axis}={value}" for axis, value in work.resolution.axes.items()]
        ),
        "WANDB_DIR": str(logs.absolute()),
    }
    is_offline = os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if tracking.wandb == "offline" or (tracking.wandb == "online" and not is_offline):
        wandb["WANDB_MODE"] = tracking.wandb
    curves = {"TENSORBOARD_LOGGING_DIR": str((logs / "tensorboard").absolute())}
    hub = {"HF_HUB_OFFLINE": "1"} if work.hub.offline else {}
    return {
        **quiet,
        **(wandb if tracking.wandb != "off" else {}),
        **(curves if tracking.tensorboard else {}),
        **hub,
        **recipe.launch.environment,
    }


def _follow(process: ServerProcess, folder: Path, work: Work) -> int:
    """Tell progress from the log until the process ends; gives its exit code."""
    seen = 0
    while (code := process.exit_code()) is None:
        seen = _tell(folder, work, seen)
        time.sleep(_LOOK_SECONDS)
    _tell(folder, work, seen)
    return code


def _tell(folder: Path, work: Work, seen: int) -> int:
    """Report steps that were not told yet; gives the last one."""
    last = next(reversed(_log_lines(folder)), None)
    if last is None or last["step"] <= seen:
        return seen
    if seen == 0:
        work.progress.start(work.resolution.address, last.get("max_steps"))
    pace = last.get("tokens_per_second") or 0
    loss = number_text(last.get("loss"), decimals=4)
    work.progress.advance(done=last["step"] - seen)
    work.progress.note(
        f"step {last['step']} of {last.get('max_steps')}: loss {loss}, {pace:,.0f} tokens/s, "
        f"{last.get('seconds_left', 0):,.0f} s left"
    )
    return int(last["step"])


def _log_lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / LOG
    return log_lines(path.read_bytes()) if path.is_file() else []


def _failure(code: int, folder: Path, process: ServerProcess, log: Path) -> Exception:
    if code == STOPPED:
        return Stopped("the training was told to stop; its last step is kept in a checkpoint")
    problem = folder / PROBLEM
    if problem.is_file():
        told = orjson.loads(problem.read_bytes())
        return StageError(told["message"], hint=told["hint"])
    if code == _MEMORY_KILL:
        return StageError(
            "the training process was killed, most likely because this machine's memory ran out",
            hint="lower `recipe.device_batch_size` (the batch stays the same), take "
            '`tuning = "lora"`, or book more memory; the same command resumes',
        )
    tail = process.tail(_TAIL_LINES)
    if missing := _NO_PACKAGE.search(tail):
        return StageError(
            f"the Python that trains has no package `{missing[1]}`",
            hint='pip install "mbt-cli[train]", or name another environment\'s Python by '
            "`launch.python`",
        )
    return StageError(
        f"the training process ended with code {code}:\n{tail}",
        hint=f"the whole log is `{log}`; the same command resumes from the last checkpoint",
    )


def _finished(work: Work, job: TrainingJob, examples: pl.DataFrame) -> pl.DataFrame:
    folder = Path(job.folder)
    if not (work.files / CHECKPOINT / "config.json").is_file():
        raise StageError("the training ended without a checkpoint")
    lines = _log_lines(folder)
    log = pl.DataFrame(
        [{name: line.get(name) for name in rows.TRAINING_LOG} for line in lines],
        schema=rows.TRAINING_LOG,
        strict=False,
    )
    told = orjson.loads((folder / SUMMARY).read_bytes())
    curve = [{name: line.get(name) for name in _CURVE} for line in lines]
    kept = int(examples["dropped"].is_null().sum())
    work.outcome.notes["funnel"] = {
        "rows": examples.height,
        "chosen": kept,
        "trained": told["rows"],
    }
    work.outcome.notes["training"] = {**told, "curve": curve}
    model = work.resolution.models["model"]
    work.outcome.model = {
        "name": model.name,
        "role": "model",
        **model.spec(),
        "weights": spec_of(job.weights),
    }
    return log


_HUB = "hub:"


def take_over(work: Work) -> pl.DataFrame:
    """Copy the source's files into the artifact; the log is empty.

    Raises:
        StageError: The source is no model folder.
        MissingInputError: The hub does not have it, or a login is missing.
        ArtifactError: The disk refuses.
    """
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
            f"`{folder}` is no model folder: it has no config.json",
            hint="name the folder that `save_pretrained` wrote, an adapter merged into its model",
        )
    with writing_to(work.files):
        shutil.copytree(folder, work.files / CHECKPOINT)
    work.outcome.notes[TRAINING] = {"method": "external", "from": source, "revision": commit}
    return pl.DataFrame(schema=rows.TRAINING_LOG)


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
    """Rollouts per question at most."""
    max_traces: int | None = Field(default=None, ge=1)
    """Traces per rollout at most."""
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Stage of `data` to its share; the largest mix that has these shares is drawn by the seed.
    Left out, all rows of all stages."""
    questions: dict[str, AxisValues] | None = None
    """Axes of the questions that GRPO asks."""
    reward: str | dict[str, float] | None = None
    """Name of the reward that GRPO maximises, or several with their weights."""
    start: StageInput | None = None
    """Train stage whose checkpoint is trained further; left out, the model itself."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """Settings laid on the preset's, key by key: `batch_size`, `tuning`, `max_length`, ..."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """TRL's settings laid on the preset's, key by key."""
    lora: dict[str, Any] = Field(default_factory=dict)
    """PEFT's settings laid on the preset's, key by key."""
    launch: Annotated[dict[str, Any], RunOnly] = Field(default_factory=dict)
    """Which Python and accelerate preset run it."""
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
        kinds = set(read.get("data", ()))
        if self.data is not None and self.target is None:
            yield "target", "is required with `data`: `reply` or `trace`"
        if self.target == "trace" and "rollout" in kinds:
            yield "target", "`trace` needs traces; `data` names rollouts, whose target is `reply`"
        if self.target == "reply" and kinds & {"synthesize", "rewrite"}:
            yield "target", "`reply` needs rollouts; `data` names traces, whose target is `trace`"
        if self.keep in ("correct", "wrong", "answered") and kinds & {"synthesize", "rewrite"}:
            yield "keep", f"`{self.keep}` speaks of rollouts; gates of their own check traces"
        named = self._data_stages()
        for stage in sorted(set(self.weights) - set(named) if self.data is not None else ()):
            yield f"weights.{stage}", "is no stage of `data`"
        if self.weights and set(named) - set(self.weights):
            yield "weights", f"says nothing of `{min(set(named) - set(self.weights))}`"

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        if work.resolution.source is not None:
            yield take_over(work)
            return
        if self.data is None:
            examples = asked_questions(work)
        else:
            examples = chosen_examples(
                work,
                Choice(
                    target=self.target or "reply",
                    keep=self.keep,
                    max_samples=self.max_samples,
                    max_traces=self.max_traces,
                    weights=self.weights,
                ),
            )
        yield train(work, examples)

    def _data_stages(self) -> tuple[str, ...]:
        written = self.data.stage if isinstance(self.data, InputReference) else self.data or ()
        return (written,) if isinstance(written, str) else tuple(written)
