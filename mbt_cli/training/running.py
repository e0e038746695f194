"""What SFT and GRPO share: devices, arguments, resuming, saving, and the facts of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import torch
from accelerate import PartialState
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from trl import GRPOConfig, SFTConfig

from mbt_cli.core.chat import Json
from mbt_cli.core.recipe import accumulation
from mbt_cli.core.throughput import model_flops_utilization, peak_flops
from mbt_cli.core.training_job import (
    ADAPTER,
    CHECKPOINT,
    SUMMARY,
    TRAINED_GGUF,
    TrainingJob,
)
from mbt_cli.training import models
from mbt_cli.training.curve import draw_curve
from mbt_cli.training.following import Follower, last_checkpoint
from mbt_cli.training.gguf_file import write_gguf
from mbt_cli.training.problems import TrainingError
from mbt_cli.training.processors import ReturnsMemory

_KEPT_CHECKPOINTS = 2
_CONFIGS = {"sft": SFTConfig, "grpo": GRPOConfig}


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


def arguments(job: TrainingJob, own: Mapping[str, Json]) -> Any:
    """TRL's settings: the recipe's, and those that mbt decides.

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
        return _CONFIGS[job.method](**{**usual, **recipe.trainer, **fixed})
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
        "method": job.method,
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
