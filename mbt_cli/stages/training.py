"""Runs a training in a process of its own, follows its log, and says why it stopped."""

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.number_text import number_text
from mbt_cli.core.recipe import Recipe
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
from mbt_cli.inference.process import ServerProcess
from mbt_cli.stages.trained import checkpoint_of, weights_of
from mbt_cli.stages.training_command import training_command
from mbt_cli.stages.work import Work
from mbt_cli.store.disk import write_atomically

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
    recipe = work.resolution.recipe
    if recipe is None:
        raise StageError(f"`{work.resolution.address}` has no recipe")
    job = _prepared(work, examples, recipe)
    place = work.place(work.resolution.models["model"].run)
    log = place.log.with_name(place.log.name.replace("server", "train"))
    environment = {**place.environment, **_variables(work, recipe, log.parent)}
    process = ServerProcess(
        training_command(recipe.launch, job, environment),
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


def _prepared(work: Work, examples: pl.DataFrame, recipe: Recipe) -> TrainingJob:
    """Write the job and its examples; folders of other trainings of this cell go."""
    resolution = work.resolution
    model = resolution.models["model"]
    start = work.inputs.get("start", ())
    weights = checkpoint_of(start[0]) if start else weights_of(model, work.place(model.run))
    content = examples.sort(examples.columns[:4]).write_ndjson()
    identity = sha256_of(
        [spec_of(recipe), model.backend.identity(), spec_of(weights), resolution.seed, content]
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
        method=recipe.method,
        address=resolution.address,
        study=resolution.study,
        weights=weights,
        template=dict(model.request.get("chat_template_kwargs", {})),
        recipe=recipe,
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
