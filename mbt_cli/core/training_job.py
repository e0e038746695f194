"""Files that a train stage and its training process exchange."""

from typing import Any

import orjson
from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import Settings
from mbt_cli.core.recipe import Recipe

LOG = "log.jsonl"
"""In the training folder: one JSON object per logged step."""
PROBLEM = "problem.json"
"""In the training folder: why the process failed, as an object with `message` and `hint`."""
SUMMARY = "summary.json"
"""In the training folder: facts about the finished run, for the lineage."""
TRAINING_SET = "training_set.parquet"
"""In the artifact's files: the exact rows that are trained on."""
CHECKPOINT = "checkpoint"
"""In the artifact's files: folder of the trained weights in hub layout."""
TRAINED_GGUF = "model.gguf"
"""In the checkpoint of a model that came as GGUF: the trained weights for llama.cpp."""
ADAPTER = "adapter"
"""In the artifact's files: folder of the adapter, if one was trained."""
STOPPED = 75
"""Exit code of a process that was stopped by a signal and has written a checkpoint."""


def log_lines(text: bytes) -> list[dict[str, Any]]:
    """Complete lines of a training's log; a partial last line is skipped."""
    return [orjson.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


class Weights(Settings):
    """The weights that a training starts from."""

    model: str
    """Name on the hub, a folder, or a GGUF file."""
    revision: str | None = None
    """Revision on the hub."""
    trust_remote_code: bool = False
    """Run the code in the model's repository."""


class TrainingJob(Settings):
    """One training."""

    address: str
    """Address of the cell, for messages."""
    study: str
    """Name of the study, for messages."""
    weights: Weights
    """The model to train."""
    template: dict[str, Json]
    """Arguments of the chat template, the same as when the model is served."""
    recipe: Recipe
    """The settings that all methods share."""
    method: dict[str, Json]
    """The settings of the method itself."""
    seed: int
    """Decides the order of the data and every random draw."""
    examples: str
    """Parquet file with the rows to train on."""
    folder: str
    """Folder of the checkpoints to resume from."""
    files: str
    """Folder of the artifact's files."""
    verifiers: dict[str, Json] = Field(default_factory=dict)
    """Address of a questions cell to its benchmark's verifier, as `verifier_reference` gives it."""
