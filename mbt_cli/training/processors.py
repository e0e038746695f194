"""What makes a training step faster without a GPU."""

import os
from typing import Any

from peft import PeftModel
from transformers import TrainerCallback

from mbt_cli.core import memory
from mbt_cli.training.mask import IGNORED

MOST_HELD = 0.5
"""Fraction of the machine's or the job's memory that a training may keep."""

PADDED_TO = 64
"""Row lengths are multiples of this, so that a step can reuse the memory of the last one."""


def keep_freed_memory() -> None:
    """Let PyTorch allocate huge pages, and the C library keep freed memory between steps.

    A batch allocates and frees gigabytes. If they go back to the system, they must be mapped and
    zeroed again, which took a third of a step's time on two cores. Call it before anything large
    is loaded; it does nothing if the C library has no such setting.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    memory.keep_freed_memory()


class ReturnsMemory(TrainerCallback):  # type: ignore[misc]
    """Returns kept memory to the system once it exceeds `MOST_HELD`.

    Rows of varying length leave gaps. Returning memory after every step would cost a third of the
    time.
    """

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Callback of the trainer."""
        if memory.held_share() > MOST_HELD:
            memory.return_freed_memory()


def score_trained_positions(model: Any) -> None:
    """Compute logits only at trained positions, not over the prompt.

    TRL does this itself, but only on GPUs. Its fused head takes shifted labels (`shift_labels`)
    for as many positions as the backbone returns, so both are narrowed before it: SFTTrainer uses
    sums over positions only, and they stay the same.

    Args:
        model: A causal language model with TRL's fused head, with or without an adapter.
    """
    causal = model.get_base_model() if isinstance(model, PeftModel) else model
    kept: list[Any] = []

    def narrow_labels(_: Any, args: Any, given: dict[str, Any]) -> Any:
        if not given.get("fused_lm_head") or "labels" not in given:
            return None
        labels = given["labels"][:, 1:]
        is_trained = labels != IGNORED
        if not is_trained.any():  # a packed row may hold only prompts
            return None
        kept.append(is_trained)
        rest = {name: value for name, value in given.items() if name != "labels"}
        return args, {**rest, "shift_labels": labels[is_trained].unsqueeze(0)}

    def narrow_states(_: Any, __: Any, output: Any) -> None:
        if kept:
            output.last_hidden_state = output.last_hidden_state[:, :-1][kept.pop()].unsqueeze(0)

    causal.register_forward_pre_hook(narrow_labels, with_kwargs=True)
    causal.base_model.register_forward_hook(narrow_states)
