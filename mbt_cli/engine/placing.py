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
    """Stages of a replica, each on as many GPUs."""
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
        refuses: Whether a model that does not fit is refused; otherwise it is placed as if on
            GPUs of 80 GB, because the study may be planned here and run elsewhere.
    """

    gpus: GPUs
    environment: Mapping[str, str]
    ask_hub: bool = False
    refuses: bool = True

    def placed(self, backend: Backend) -> tuple[Backend, Placement | None]:
        """As `Backend.placed`.

        Raises:
            UsageError: The model does not fit.
        """
        try:
            return backend.placed(self.gpus, self.environment, ask_hub=self.ask_hub)
        except UsageError:
            if self.refuses:
                raise
            return backend.placed(UNKNOWN, self.environment, ask_hub=self.ask_hub)


def placing_here(
    environment: Mapping[str, str], *, ask_hub: bool = False, refuses: bool = False
) -> Placing:
    """Placing on the GPUs of this machine; as if on GPUs of 80 GB where it has none."""
    return Placing(gpus_at_hand(environment) or UNKNOWN, environment, ask_hub, refuses)


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
        gpus=str(chosen.gpus),
        tensor_parallel=chosen.tensor_parallel,
        pipeline_parallel=chosen.pipeline_parallel,
        replicas=chosen.replicas,
        free_gib=round(chosen.cache_gib, 1),
        why=str(chosen),
    )
