"""The order in which one process makes cells: inputs first, with few starts of servers."""

import heapq
from collections.abc import Sequence

from mbt_cli.engine.plan import server_of
from mbt_cli.engine.states import CellState


def run_order(states: Sequence[CellState]) -> list[str]:
    """The addresses of cells, those that ask the same server one after the other.

    The order is the given one, except that cells whose inputs are made come earlier while the
    server that they need runs anyway.

    Args:
        states: The cells, inputs before the cells that read them.
    """
    places = {state.cell.address: place for place, state in enumerate(states)}
    servers = [server_of(state)[0] for state in states]
    waits_for = [sum(need in places for need in set(state.cell.needs)) for state in states]
    readers: dict[str, list[int]] = {}
    for place, state in enumerate(states):
        for need in set(state.cell.needs):
            readers.setdefault(need, []).append(place)
    ready: list[int] = []
    of_server: dict[str, list[int]] = {}

    def add(place: int) -> None:
        heapq.heappush(ready, place)
        heapq.heappush(of_server.setdefault(servers[place], []), place)

    for place, count in enumerate(waits_for):
        if not count:
            add(place)
    ordered: list[str] = []
    is_made, running = [False] * len(states), ""
    while first := _first(ready, is_made):
        place = first[0]
        if servers[place] and servers[place] != running:
            place = next(iter(_first(of_server.get(running, []), is_made)), place)
        running = servers[place] or running
        is_made[place] = True
        ordered.append(states[place].cell.address)
        for reader in readers.get(ordered[-1], ()):
            waits_for[reader] -= 1
            if not waits_for[reader]:
                add(reader)
    return ordered


def _first(heap: list[int], is_made: Sequence[bool]) -> Sequence[int]:
    """The first place of a heap that is not made, without those that are; empty if none is left."""
    while heap and is_made[heap[0]]:
        heapq.heappop(heap)
    return heap[:1]
