"""What happens beside the steps: the log, checkpoints to resume from, signals, broken numbers."""

import math
import resource
import shutil
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mbt_cli.core.training_job import LOG, log_lines
from mbt_cli.training.problems import StoppedEarly, TrainingError

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
