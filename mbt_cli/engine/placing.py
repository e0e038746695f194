"""Where the models of a study are served: on which GPUs, and with how many replicas."""

from collections.abc import Mapping
from dataclasses import dataclass

from mbt_cli.core.gpus import GPUs, gpus_at_hand
from mbt_cli.core.placement import Placement
from mbt_cli.core.plugin import Settings
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Backend

UNKNOWN = GPUs(None, None, source="unknown")
"""GPUs of which nothing is known: each model gets as few of 80 GB as hold it."""


class PlannedPlacement(Settings):
    """Where a model of the plan is served."""

    model: str
    """Its name in the manifest."""
    gpus: str
    """The GPUs that it was chosen for, in words."""
    tensor_parallel: int
    """GPUs of a node that share a replica."""
    pipeline_parallel: int = 1
    """Nodes that share a replica."""
    replicas: int = 1
    """Replicas on a node."""
    free_gib: float
    """Memory on each GPU that is left for the cache."""
    why: str
    """The choice and its numbers."""


@dataclass(frozen=True)
class Placing:
    """Places models on the same GPUs.

    Args:
        gpus: The GPUs to choose from.
        environment: The process environment.
        ask_hub: Whether the hub is asked for the sizes of models.
    """

    gpus: GPUs
    environment: Mapping[str, str]
    ask_hub: bool = False

    def placed(self, backend: Backend) -> tuple[Backend, Placement | None]:
        """As `Backend.placed`.

        Raises:
            UsageError: The model does not fit.
        """
        return backend.placed(self.gpus, self.environment, ask_hub=self.ask_hub)

    def count(self, backend: Backend) -> int:
        """GPUs that the backend's server uses; those of its settings if it does not fit."""
        try:
            return self.placed(backend)[0].gpus()
        except UsageError:
            return backend.gpus()


def placing_here(environment: Mapping[str, str], *, ask_hub: bool = False) -> Placing:
    """Placing on the GPUs of this machine; as if on GPUs of 80 GB where it has none."""
    return Placing(gpus_at_hand(environment) or UNKNOWN, environment, ask_hub)


def planned_placement(name: str, backend: Backend, placing: Placing) -> PlannedPlacement | None:
    """The placement of a model; None if its settings say it, or its size is not known.

    Raises:
        UsageError: The model does not fit.
    """
    _, chosen = placing.placed(backend)
    if chosen is None:
        return None
    return PlannedPlacement(
        model=name,
        gpus=str(placing.gpus),
        tensor_parallel=chosen.tensor_parallel,
        pipeline_parallel=chosen.pipeline_parallel,
        replicas=chosen.replicas,
        free_gib=round(chosen.cache_gib, 1),
        why=str(chosen),
    )
