"""Why a training stops, in words for a user: memory, disk, numbers that are no numbers."""

import errno
import fcntl
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import torch
from safetensors import SafetensorError

from mbt_cli.core.training_job import PROBLEM, STOPPED, TrainingJob
from mbt_cli.errors import UsageError
from mbt_cli.training.mask import ChatTemplateError

_FULL = ("No space left on device", "Disk quota exceeded", "unexpected pos", "file write failed")
_FAILED = 3
_RESUMES = "the same command resumes from the last checkpoint"


class TrainingError(Exception):
    """Something that a user can change."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class StoppedEarly(Exception):
    """A signal asked for the end; a checkpoint is written."""


def exit_code_of(train: Callable[[TrainingJob], None], job_file: str) -> int:
    """Train, and leave the reason in the job's folder where it fails; gives the exit code."""
    job = TrainingJob.model_validate_json(Path(job_file).read_bytes())
    try:
        with _alone(Path(job.folder)):
            train(job)
    except StoppedEarly:
        return STOPPED
    except (
        TrainingError,
        UsageError,
        ChatTemplateError,
        OSError,
        MemoryError,
        RuntimeError,
        SafetensorError,
        TypeError,
        ValueError,
    ) as error:
        traceback.print_exc(file=sys.stderr)
        told = explained(error, job)
        if told is None:
            return 1
        problem = {"message": f"`{job.address}`: {told.message}", "hint": told.hint}
        (Path(job.folder) / PROBLEM).write_bytes(orjson.dumps(problem))
        return _FAILED
    return 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for an earlier process of this training that still writes its last checkpoint."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def explained(error: BaseException, job: TrainingJob) -> TrainingError | None:
    """The error in a user's words; None where only its traceback says what happened."""
    text = str(error)
    if isinstance(error, TrainingError):
        return error
    if isinstance(error, UsageError):
        return TrainingError(error.message, error.hint or "")
    if isinstance(error, ChatTemplateError):
        return TrainingError(
            text, "this model's chat template cannot be trained with; take a model whose can"
        )
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "out of memory" in text.lower():
        return TrainingError(
            f"out of memory at device_batch_size {job.recipe.device_batch_size}, "
            f"max_length {job.recipe.max_length}",
            "lower `recipe.device_batch_size` (accumulation keeps the batch as it is), lower "
            '`recipe.max_length`, or take `recipe.tuning = "lora"`; ' + _RESUMES,
        )
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or any(words in text for words in _FULL):
        return TrainingError(
            f"the disk is full: a checkpoint could not be written below `{job.folder}`",
            "free some space, or raise `recipe.save_every_steps`; " + _RESUMES,
        )
    if "requires tensorboard" in text:
        return TrainingError(
            "`tracking.tensorboard` needs a package that is not there", "pip install tensorboard"
        )
    if isinstance(error, TypeError | ValueError) and "Config" in text:
        return TrainingError(text.splitlines()[0], "look at the keys of `trainer` and `lora`")
    return None
