"""Which GPUs each of several servers gets that a cell runs at once, for the roles of a program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mbt_cli.core.gpus import GPUs, gpus_at_hand
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Backend

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def with_own_gpus(place: ServerPlace, backend: Backend, beside: Sequence[Backend]) -> ServerPlace:
    """The place of a server with its share of the GPUs, if others run beside it.

    Each server gets as few GPUs as hold its model, and the first one those that are left. A model
    whose `place.environment` names its GPUs keeps them, and so can share them.

    Args:
        place: The place, with all GPUs at hand in its environment.
        backend: The server's backend, one of `beside`.
        beside: All backends that the cell asks.

    Raises:
        StageError: The models need more GPUs than there are.
    """
    own: list[Backend] = []
    for one in beside:
        if one.gpus() and not _names_gpus(one) and one not in own:
            own.append(one)
    at_hand = gpus_at_hand(place.environment)
    if len(own) < 2 or backend not in own or at_hand is None or at_hand.count is None:
        return place
    known = GPUs(None, at_hand.memory_gib)
    needs = [one.placed(known, place.environment, ask_hub=False)[0].gpus() for one in own]
    if sum(needs) > at_hand.count:
        raise StageError(
            f"the models of a program run at once and need {sum(needs)} GPUs; there are "
            f"{at_hand.count}",
            hint="run it on more GPUs, or let models share one: `place.environment = "
            f'{{ {_VISIBLE} = "0" }}` and a smaller `place.gpu_memory_utilization` each',
        )
    needs[0] += at_hand.count - sum(needs)
    number = own.index(backend)
    first = sum(needs[:number])
    share = _ids(place.environment, at_hand.count)[first : first + needs[number]]
    return replace(place, environment={**place.environment, _VISIBLE: ",".join(share)})


def _names_gpus(backend: Backend) -> bool:
    own = getattr(getattr(backend, "place", None), "environment", {})
    return _VISIBLE in own


def _ids(environment: Mapping[str, str], count: int) -> list[str]:
    named = [part.strip() for part in environment.get(_VISIBLE, "").split(",") if part.strip()]
    return named or [str(number) for number in range(count)]
