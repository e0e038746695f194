"""A trained model as the model of another cell: a checkpoint replaces the weights of the model.

A method without weights makes examples instead, which stand before the questions of a rollout.

While a training runs it publishes the checkpoints that other cells read, each as a cell of its own
with the axis `step`, whole from the moment that it appears:

    grpo/model=qwen             the training, and the last checkpoint once it has ended
    grpo/model=qwen/step=20     the checkpoint of step 20
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated

import orjson
from pydantic import Field, ValidationError

from mbt_cli.core.addresses import STEP
from mbt_cli.core.few_shot import FEW_SHOT, FewShotPrompt
from mbt_cli.core.plugin import Settings
from mbt_cli.core.training_job import CHECKPOINT, HOSTED, Weights
from mbt_cli.errors import StageError
from mbt_cli.stages.base import InputReference, LoadedInput, Resolution, StageInput
from mbt_cli.store.cells import FILES

ALL_STEPS = "all"
"""In `where`: every step that is published."""
TRAINING = "training"
"""The input of a checkpoint's cell: the training that publishes it."""


class Beside(Settings):
    """Where checkpoints are evaluated while their training runs."""

    gpus: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = ()
    """Numbers of the GPUs among those that the run sees, from 0; none: on the processors."""


def beside_problems(
    beside: Beside | None, checkpoints: StageInput | None
) -> Iterator[tuple[str, str]]:
    """That a stage evaluates beside a training whose steps it does not read: field and message."""
    where = checkpoints.where if isinstance(checkpoints, InputReference) else {}
    if beside is not None and STEP not in where:
        steps = f'checkpoints = {{ stage = "...", where = {{ {STEP} = "{ALL_STEPS}" }} }}'
        yield "beside", f"is for the checkpoints of a training that runs: `{steps}`"


def with_checkpoints(
    resolution: Resolution, inputs: Mapping[str, tuple[LoadedInput, ...]]
) -> Resolution:
    """The resolution with the checkpoint that the cell reads as its model, if it reads one.

    Raises:
        StageError: The train cell is not finished, or its examples cannot be read.
        BackendError: The model's backend cannot serve a folder of weights.
    """
    cells = inputs.get("checkpoints", ())
    if not cells:
        return resolution
    (cell,) = cells
    if cell.lineage is None:
        raise StageError(f"`{cell.address}` is not finished")
    model = resolution.models["model"]
    if (shown := few_shot_of(cell)) is not None:
        served = replace(model, trained=cell.address, few_shot=shown)
        return replace(resolution, models={**resolution.models, "model": served})
    hosted = hosted_checkpoint(cell)
    if hosted is not None:
        model, backend = replace(model, id=hosted), model.backend.naming(hosted)
    else:
        folder = checkpoint_of(cell).model
        backend = model.backend.serving(folder=folder, sha256=cell.lineage.content_sha256())
    served = replace(model, backend=backend, trained=cell.address)
    return replace(resolution, models={**resolution.models, "model": served})


def few_shot_of(cell: LoadedInput) -> FewShotPrompt | None:
    """The examples that a train cell without weights made; None if it made weights.

    Raises:
        StageError: They cannot be read.
    """
    path = cell.folder / FILES / FEW_SHOT
    if not path.is_file():
        return None
    try:
        return FewShotPrompt.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StageError(
            f"`{path}` cannot be read: {error}", hint=f"move `{cell.folder}` away to make it again"
        ) from error


def checkpoint_of(cell: LoadedInput) -> Weights:
    """The weights that a train cell made.

    Raises:
        StageError: It has none.
    """
    if (hosted := hosted_checkpoint(cell)) is not None:
        raise StageError(
            f"`{cell.address}` is the model `{hosted}` of a provider, which gives no weights",
            hint="use it where its endpoint is asked, such as `checkpoints` of a rollout",
        )
    folder = cell.folder / FILES / CHECKPOINT
    if not (folder / "config.json").is_file():
        raise StageError(f"`{cell.address}` has no checkpoint in `{folder}`")
    return Weights(model=str(folder.absolute()))


def hosted_checkpoint(cell: LoadedInput) -> str | None:
    """The provider's name of the model that a train cell made; None if it made weights."""
    path = cell.folder / FILES / CHECKPOINT / HOSTED
    return str(orjson.loads(path.read_bytes())["model"]) if path.is_file() else None
