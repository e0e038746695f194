"""A finished train cell as a model: its checkpoint takes the place of the model's own weights."""

from collections.abc import Mapping
from dataclasses import replace

from mbt_cli.core.serving import ServerPlace
from mbt_cli.core.training_job import CHECKPOINT, Weights
from mbt_cli.errors import StageError
from mbt_cli.stages.base import LoadedInput, Model, Resolution
from mbt_cli.store.artifacts import FILES

_CHECKPOINTS = "checkpoints"
_ROLE = "model"


def with_checkpoints(
    resolution: Resolution, inputs: Mapping[str, tuple[LoadedInput, ...]]
) -> Resolution:
    """The resolution whose model serves the checkpoint that the cell reads, if it reads one.

    Raises:
        StageError: The model's backend cannot serve a folder of weights.
    """
    cells = inputs.get(_CHECKPOINTS, ())
    if not cells:
        return resolution
    (cell,) = cells
    model = resolution.models[_ROLE]
    served = replace(model, backend=model.backend.serving(**_served(cell)), trained=cell.address)
    return replace(resolution, models={**resolution.models, _ROLE: served})


def checkpoint_of(cell: LoadedInput) -> Weights:
    """The weights that a train cell made.

    Raises:
        StageError: The cell has none.
    """
    folder = cell.folder / FILES / CHECKPOINT
    if not (folder / "config.json").is_file():
        raise StageError(f"`{cell.address}` has no checkpoint in `{folder}`")
    return Weights(model=str(folder.absolute()))


def weights_of(model: Model, place: ServerPlace) -> Weights:
    """Where the weights of a model are.

    Raises:
        StageError: Its backend only knows an endpoint.
    """
    found = model.backend.weights(place)
    if found is None:
        raise StageError(
            f"the model `{model.name}` cannot be trained: its backend "
            f"`{model.backend.kind}` knows no weights",
            hint="give it the backend `transformers`, `vllm` or `llamacpp`",
        )
    return found


def _served(cell: LoadedInput) -> dict[str, str]:
    if cell.lineage is None:
        raise StageError(f"`{cell.address}` is not finished")
    return {"folder": checkpoint_of(cell).model, "sha256": cell.lineage.content_sha256()}
