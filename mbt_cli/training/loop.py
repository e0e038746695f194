"""What SFT and GRPO share: devices, arguments, resuming, saving, and the facts of a run."""

import math
import resource
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import torch
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from mbt_cli.core.chat import Json
from mbt_cli.core.recipe import accumulation
from mbt_cli.core.training_job import (
    ADAPTER,
    CHECKPOINT,
    LOG,
    SUMMARY,
    TRAINED_GGUF,
    TrainingJob,
    log_lines,
)
from mbt_cli.training import models
from mbt_cli.training.models import write_gguf
from mbt_cli.training.problems import StoppedEarly, TrainingError
from mbt_cli.training.processors import ReturnsMemory


def draw_curve(folder: Path, files: Path) -> None:
    """Write loss.png from the log; a line says so where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        print("no loss.png: matplotlib is not installed", flush=True)  # noqa: T201
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    lines = log_lines((folder / LOG).read_bytes())
    shown = [
        name for name in ("loss", "reward") if any(line.get(name) is not None for line in lines)
    ]
    figure, axes = pyplot.subplots(len(shown) or 1, 1, squeeze=False, figsize=(6, 3 * len(shown)))
    for name, axis in zip(shown, axes[:, 0], strict=False):
        points = [line for line in lines if line.get(name) is not None]
        axis.plot([p["step"] for p in points], [p[name] for p in points], color="#1f5a8a")
        axis.set(xlabel="step", ylabel=name)
    figure.tight_layout()
    figure.savefig(files / "loss.png", dpi=120)
    pyplot.close(figure)


_WHOLE = "mbt-whole"
"""Marks a checkpoint that was written to its end."""
_TOLD = ("epoch", "loss", "learning_rate", "grad_norm", "reward", "kl")
_KIBIBYTE = 1024


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint; those that a crash cut off are removed."""
    found: dict[int, Path] = {}
    for path in folder.glob("checkpoint-*"):
        if (path / _WHOLE).is_file():
            found[int(path.name.rpartition("-")[2])] = path
        else:
            shutil.rmtree(path)
    return found[max(found)] if found else None


class Follower(TrainerCallback):  # type: ignore[misc]
    """Writes the log, marks checkpoints, and stops in order when a signal comes.

    Args:
        folder: The job's folder.
        resumed_step: Step of the checkpoint that is resumed; later lines of the log go.
        writes: Whether this process is the one of all that writes the log.
    """

    def __init__(self, folder: Path, resumed_step: int, *, writes: bool = True) -> None:
        self._folder = folder
        self._is_stopping = False
        self._begun = time.monotonic()
        self._first_step = resumed_step
        before = _log_until(folder / LOG, resumed_step)
        ended = before[-1] if before else {}
        self._seconds_before = float(ended.get("seconds", 0.0))
        self._tokens_before = float(ended.get("tokens", 0.0))
        self._first: tuple[float, float] | None = None
        self._last = (self._begun, self._tokens_before)
        if writes and (folder / LOG).is_file():
            partial = (folder / LOG).with_suffix(".partial")
            partial.write_bytes(b"".join(map(_written, before)))
            partial.replace(folder / LOG)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._stop)

    @property
    def tokens(self) -> float:
        """Tokens seen until the last line of the log, by earlier processes too."""
        return self._last[1]

    @property
    def seconds(self) -> float:
        """Time of training until the last line of the log, by earlier processes too."""
        return self._seconds_before + self._last[0] - self._begun

    @property
    def tokens_per_second(self) -> float | None:
        """Between this process's first line and its last; what warms up does not count."""
        if self._first is None or self._first == self._last:
            return None
        (began, tokens_before), (ended, tokens) = self._first, self._last
        return (tokens - tokens_before) / (ended - began)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if logs is None or "loss" not in logs:
            return
        if state.is_world_process_zero:
            self._write(state, logs)
        for name in ("loss", "grad_norm"):
            value = float(logs.get(name) or 0.0)
            if not math.isfinite(value):
                raise TrainingError(
                    f"{name} became {value} at step {state.global_step}",
                    "lower `trainer.learning_rate`, set `trainer.max_grad_norm`, look at the "
                    "longest rows of files/training_set.parquet, or train in float32",
                )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self._anyone_stopping():
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        path = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and path.is_dir():
            (path / _WHOLE).touch()
        if torch.distributed.is_initialized():
            # the first process to leave ends all others, so none leaves before it is written
            torch.distributed.barrier()

    def check_finished(self, state: TrainerState) -> None:
        """StoppedEarly when a signal ended the training before its last step."""
        if self._is_stopping and state.global_step < state.max_steps:
            raise StoppedEarly

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True

    def _anyone_stopping(self) -> bool:
        """Whether any process got the signal, so that all of them save the same step."""
        if not torch.distributed.is_initialized():
            return self._is_stopping
        flag = torch.tensor(int(self._is_stopping))
        if torch.cuda.is_available():
            flag = flag.cuda()
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        self._is_stopping = bool(flag.item())
        return self._is_stopping

    def _write(self, state: TrainerState, logs: dict[str, Any]) -> None:
        now = time.monotonic()
        tokens = self._tokens_before + float(logs.get("num_tokens", 0.0))
        before, tokens_before = self._last
        is_first = self._first is None
        self._last = (now, tokens)
        self._first = self._first or self._last
        seconds = now - self._begun
        steps = state.global_step - self._first_step
        left = (state.max_steps - state.global_step) * seconds / max(1, steps)
        pace = None if is_first else (tokens - tokens_before) / (now - before)
        line = {
            "step": state.global_step,
            "max_steps": state.max_steps,
            **{name: logs[name] for name in _TOLD if name in logs},
            "completion_length": logs.get("completions/mean_length"),
            "tokens": tokens,
            "tokens_per_second": pace,
            "memory_bytes": memory_bytes(),
            "seconds": round(self.seconds, 3),
            "seconds_left": round(left, 1),
        }
        with (self._folder / LOG).open("ab") as file:
            file.write(_written(line))


def _log_until(path: Path, step: int) -> list[dict[str, Any]]:
    """Lines of the log up to a step: what earlier processes wrote that still counts."""
    lines = log_lines(path.read_bytes()) if path.is_file() else []
    return [line for line in lines if line["step"] <= step]


def _written(line: dict[str, Any]) -> bytes:
    return orjson.dumps(line) + b"\n"


def memory_bytes() -> int:
    """Most memory that was taken at once: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE


# operations a parameter and token; attention itself is left out
_THROUGH = 4  # forward 2, and 2 to pass the gradient back
_TRAINED = 2  # for the gradient of a parameter that is trained
_PEAK_BFLOAT16: tuple[tuple[str, float], ...] = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("A10", 125e12),
    ("RTX 4090", 165e12),
)
"""Dense bfloat16 operations a second, from the makers' data sheets."""


def peak_flops(device: str | None) -> float | None:
    """Most operations a second that a GPU can do, None for an unknown one.

    Example:
        >>> peak_flops("NVIDIA H100 80GB HBM3")
        989000000000000.0
    """
    return next((peak for name, peak in _PEAK_BFLOAT16 if device and name in device), None)


def model_flops_utilization(
    tokens_per_second: float | None,
    parameters: int,
    trained_parameters: int,
    peak: float | None,
    devices: int,
) -> float | None:
    """Share of the peak that training needs: 6 operations a token for each trained parameter.

    A parameter that is frozen, as all are below an adapter, needs 4: it has no gradient itself.

    Example:
        >>> model_flops_utilization(1e4, 10**9, 10**9, 1e15, 1)
        0.06
        >>> model_flops_utilization(1e4, 10**9, 0, 1e15, 1)
        0.04
    """
    if tokens_per_second is None or peak is None:
        return None
    operations = _THROUGH * parameters + _TRAINED * trained_parameters
    return operations * tokens_per_second / (peak * devices)


_KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class Trained:
    """A training that went through to its last step.

    Args:
        follower: What followed it.
        parameters: All of the model's.
        trained_parameters: Those that had a gradient.
    """

    follower: Follower
    parameters: int
    trained_parameters: int


def process_state() -> PartialState:
    """This process among those that train together; on processors alone they are some too."""
    return PartialState(cpu=not torch.cuda.is_available())


def devices() -> int:
    """Processes that train together."""
    state = process_state()
    if torch.cuda.device_count() > 1 and state.num_processes == 1:
        raise TrainingError(
            f"this machine shows {torch.cuda.device_count()} GPUs, and one process trains",
            'say `launch.accelerate = "multi_gpu"`, or show one by CUDA_VISIBLE_DEVICES',
        )
    return int(state.num_processes)


def arguments(job: TrainingJob, config: type, own: Mapping[str, Json]) -> Any:
    """TRL's settings: the recipe's, and those that mbt decides.

    Args:
        job: The training.
        config: TRL's class of settings.
        own: Settings that the method decides.

    Raises:
        TrainingError: The batch does not divide into the devices, or TRL refuses a value.
    """
    recipe = job.recipe
    try:
        steps = accumulation(recipe.batch_size, recipe.device_batch_size, devices())
    except ValueError as error:
        raise TrainingError(str(error), "set `recipe.device_batch_size`") from error
    tracking = recipe.tracking
    trackers = {"wandb": tracking.wandb != "off", "tensorboard": tracking.tensorboard}
    fixed: dict[str, Any] = {
        "output_dir": str(Path(job.folder) / "checkpoints"),
        "per_device_train_batch_size": recipe.device_batch_size,
        "gradient_accumulation_steps": steps,
        "save_strategy": "steps",
        "save_steps": recipe.save_every_steps,
        "save_total_limit": _KEPT_CHECKPOINTS,
        "report_to": [name for name, is_on in trackers.items() if is_on] or "none",
        "run_name": job.address,
        "seed": job.seed,
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "use_liger_kernel": models.liger(recipe),
        **own,
    }
    usual = {"logging_steps": 1, "logging_nan_inf_filter": False, "data_seed": job.seed}
    try:
        return config(**{**usual, **recipe.trainer, **fixed})
    except (TypeError, ValueError) as error:
        words = str(error).splitlines()[0]
        raise TrainingError(f"TRL refuses the settings: {words}", "mend `trainer`") from error


def train(trainer: Any, job: TrainingJob) -> Trained:
    """Train from the last whole checkpoint, or from the start."""
    parameters, trained = models.parameter_counts(trainer.model)
    if job.recipe.float32_matmul is not None:
        torch.set_float32_matmul_precision(job.recipe.float32_matmul)
    if not torch.cuda.is_available():
        trainer.add_callback(ReturnsMemory())
    state = process_state()
    with state.main_process_first():
        found = last_checkpoint(Path(job.folder) / "checkpoints")
    step = int(found.name.rpartition("-")[2]) if found else 0
    if found:
        print(f"resuming from step {step}", flush=True)  # noqa: T201 - the training's log
    follower = Follower(Path(job.folder), step, writes=state.is_main_process)
    trainer.add_callback(follower)
    ended = TrainerState.load_from_json(str(found / TRAINER_STATE_NAME)) if found else None
    if ended and ended.global_step >= ended.max_steps and not trainer.is_fsdp_enabled:
        # after the last step the trainer itself would take one more
        trainer._load_from_checkpoint(str(found))
        trainer.state = ended
    else:
        trainer.train(resume_from_checkpoint=str(found) if found else None)
    follower.check_finished(trainer.state)
    return Trained(follower, parameters, trained)


def finish(
    trainer: Any, job: TrainingJob, trained: Trained, *, end_token: int, facts: dict[str, Json]
) -> None:
    """Save the checkpoint, the curve and the facts of the run."""
    files = Path(job.files)
    tokenizer = trainer.processing_class
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        plugin.set_state_dict_type("FULL_STATE_DICT")
    is_plain = job.recipe.tuning == "full" and plugin is None
    gathered = files / ADAPTER if job.recipe.tuning != "full" else Path(job.folder) / "full"
    if not is_plain:
        trainer.save_model(str(gathered))
    trainer.accelerator.wait_for_everyone()
    if not trainer.accelerator.is_main_process:
        return
    model = (
        trainer.accelerator.unwrap_model(trainer.model) if is_plain else _gathered(job, gathered)
    )
    for leftover in ("training_args.bin", "README.md"):
        (files / ADAPTER / leftover).unlink(missing_ok=True)
    checkpoint = files / CHECKPOINT
    models.save(model, tokenizer, checkpoint, end_token=end_token)
    if models.is_gguf(job.weights):
        write_gguf(model, Path(job.weights.model), checkpoint / TRAINED_GGUF)
    draw_curve(Path(job.folder), files)
    told = {**_facts(trainer, job, trained), **facts}
    (Path(job.folder) / SUMMARY).write_bytes(orjson.dumps(told))


def _gathered(job: TrainingJob, folder: Path) -> Any:
    if job.recipe.tuning != "full":
        return models.merged(job.weights, job.recipe, folder)
    return models.load_model(job.weights.model_copy(update={"model": str(folder)}), job.recipe)


def _facts(trainer: Any, job: TrainingJob, trained: Trained) -> dict[str, Json]:
    """Numbers for the lineage and for the table of training runs."""
    state = trainer.state
    losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
    pace = trained.follower.tokens_per_second
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    processes = trainer.accelerator.num_processes
    packages = ("torch", "transformers", "trl", "peft", "accelerate")
    return {
        "method": job.recipe.method,
        "tuning": job.recipe.tuning,
        "epochs": state.epoch,
        "steps": state.global_step,
        "tokens": trained.follower.tokens,
        "seconds": trained.follower.seconds,
        "last_loss": losses[-1] if losses else None,
        "tokens_per_second": pace,
        "mfu": model_flops_utilization(
            pace, trained.parameters, trained.trained_parameters, peak_flops(gpu), processes
        ),
        "parameters": trained.parameters,
        "trained_parameters": trained.trained_parameters,
        "processes": processes,
        "device": gpu or "cpu",
        "attention": getattr(trainer.model.config, "_attn_implementation", None),
        "liger": models.liger(job.recipe) and find_spec("liger_kernel") is not None,
        "versions": {name: version(name) for name in packages},
    }
