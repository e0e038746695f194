"""What makes a training step faster where there is no GPU."""

import os
from typing import Any

from peft import PeftModel
from transformers import TrainerCallback

from mbt_cli.core import memory
from mbt_cli.training.mask import IGNORED

MOST_HELD = 0.5
"""Share of the machine's memory, or of what its job may take, that a training may keep."""

PADDED_TO = 64
"""Tokens; rows of few different lengths let a step take up what the last one freed."""


def keep_freed_memory() -> None:
    """Let PyTorch take memory in huge pages, and the C library keep what is freed meanwhile.

    A batch takes and frees gigabytes. Handed back to the system each time, they must be mapped
    and zeroed anew, which was a third of a step's time on two cores. To be called before anything
    large is loaded; does nothing where the C library has no such setting.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    memory.keep_freed_memory()


class ReturnsMemory(TrainerCallback):  # type: ignore[misc]
    """Gives kept memory back after a step where it has become much: lengths that vary leave gaps.

    Not after each step: to be given the same gigabytes anew took a third of the time.
    """

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Called by the trainer."""
        if memory.held_share() > MOST_HELD:
            memory.return_freed_memory()


def score_trained_positions(model: Any) -> None:
    """Compute the vocabulary's logits where a token is trained, not over the prompt too.

    TRL does so by itself on GPUs alone. Its fused head takes labels that are shifted already
    (`shift_labels`) for as many positions as the backbone gives, so both are narrowed on their
    way in: sums over positions, which are all that SFTTrainer uses, stay what they were.

    Args:
        model: A causal language model to which TRL has added its fused head, or one with an
            adapter.
    """
    causal = model.get_base_model() if isinstance(model, PeftModel) else model
    kept: list[Any] = []

    def narrow_labels(_: Any, args: Any, given: dict[str, Any]) -> Any:
        if not given.get("fused_lm_head") or "labels" not in given:
            return None
        labels = given["labels"][:, 1:]
        is_trained = labels != IGNORED
        if not is_trained.any():  # a packed row may hold prompts alone
            return None
        kept.append(is_trained)
        rest = {name: value for name, value in given.items() if name != "labels"}
        return args, {**rest, "shift_labels": labels[is_trained].unsqueeze(0)}

    def narrow_states(_: Any, __: Any, output: Any) -> None:
        if kept:
            output.last_hidden_state = output.last_hidden_state[:, :-1][kept.pop()].unsqueeze(0)

    causal.register_forward_pre_hook(narrow_labels, with_kwargs=True)
    causal.base_model.register_forward_hook(narrow_states)
