"""What the training process is told, and what it tells back: files that both sides read."""

from typing import Any, Literal

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.core.model import Settings
from mbt_cli.core.recipe import Recipe

LOG = "log.jsonl"
"""One JSON object a logged step, in the training folder."""
PROBLEM = "problem.json"
"""Why the process stopped: an object with `message` and `hint`."""
SUMMARY = "summary.json"
"""Facts about the finished run, for the lineage."""
TRAINING_SET = "training_set.parquet"
"""The exact rows, in the artifact's files."""
CHECKPOINT = "checkpoint"
"""Folder of the trained weights in hub layout, in the artifact's files."""
TRAINED_GGUF = "model.gguf"
"""The trained weights for llama.cpp, in the checkpoint of a model that came as GGUF."""
ADAPTER = "adapter"
"""Folder of the adapter alone, where there is one."""
STOPPED = 75
"""Exit code of a process that was told to stop and has written a checkpoint."""


def log_lines(text: bytes) -> list[dict[str, Any]]:
    """Whole lines of a training's log; one that is being written is left for later."""
    return [orjson.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


class Weights(Settings):
    """Where the weights are that training starts from."""

    model: str
    """Name on the hub, a folder, or a GGUF file."""
    revision: str | None = None
    """Revision on the hub."""
    trust_remote_code: bool = False
    """Run the code that the model's repository brings."""


class TrainingJob(Settings):
    """One training."""

    method: Literal["sft", "grpo"]
    """Which module of mbt_cli.training runs it."""
    address: str
    """The cell, for people."""
    study: str
    """The study, for people."""
    weights: Weights
    """What is trained."""
    template: dict[str, Json]
    """Arguments of the chat template, as the model is served with."""
    recipe: Recipe
    """How it is trained."""
    seed: int
    """Decides the order of the data and every draw."""
    examples: str
    """Parquet with the rows to train on (SFT) or the questions to ask (GRPO)."""
    folder: str
    """Where checkpoints to resume from are kept."""
    files: str
    """Where the artifact's files go."""
