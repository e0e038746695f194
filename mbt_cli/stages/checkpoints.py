"""A finished train cell as a model: its checkpoint replaces the weights of the model."""

from collections.abc import Mapping
from dataclasses import replace

from mbt_cli.core.training_job import CHECKPOINT, Weights
from mbt_cli.errors import StageError
from mbt_cli.stages.base import LoadedInput, Resolution
from mbt_cli.store.cells import FILES


def with_checkpoints(
    resolution: Resolution, inputs: Mapping[str, tuple[LoadedInput, ...]]
) -> Resolution:
    """The resolution with the checkpoint that the cell reads as its model, if it reads one.

    Raises:
        StageError: The train cell is not finished.
        BackendError: The model's backend cannot serve a folder of weights.
    """
    cells = inputs.get("checkpoints", ())
    if not cells:
        return resolution
    (cell,) = cells
    if cell.lineage is None:
        raise StageError(f"`{cell.address}` is not finished")
    model = resolution.models["model"]
    folder = checkpoint_of(cell).model
    backend = model.backend.serving(folder=folder, sha256=cell.lineage.content_sha256())
    served = replace(model, backend=backend, trained=cell.address)
    return replace(resolution, models={**resolution.models, "model": served})


def checkpoint_of(cell: LoadedInput) -> Weights:
    """The weights that a train cell made.

    Raises:
        StageError: It has none.
    """
    folder = cell.folder / FILES / CHECKPOINT
    if not (folder / "config.json").is_file():
        raise StageError(f"`{cell.address}` has no checkpoint in `{folder}`")
    return Weights(model=str(folder.absolute()))
