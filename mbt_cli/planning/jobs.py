"""Cells to jobs: what needs the same server shares one job, so that it boots once a job.

Cells are put on levels: a cell stands one level above the highest it reads, or on the same level
where both need the same server. Every cell of one server on one level is one job, cut where it
would grow beyond the limits, so jobs never wait for each other in a circle.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mbt_cli.core.chat import Json
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.recipe import Launch
from mbt_cli.planning.sizes import Size, asked_model
from mbt_cli.planning.states import CellState
from mbt_cli.stages.work import Model

_WIDE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_HAVE_GPU = ("vllm", "transformers")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one job may hold.

    Args:
        max_cells: Cells.
        max_hours: Hours by the estimate, where there is one.
        max_rows: Rows of one cell above which it is split into shards.
    """

    max_cells: int = 24
    max_hours: float = 12.0
    max_rows: int = 100_000


@dataclass
class Draft:
    """A job as it grows.

    Args:
        server: What its server is known by; empty where it needs none.
        shards: Array tasks that share its one cell.
        merges: Whether it only merges what the tasks of another job left.
    """

    id: str
    kind: str
    server: str
    model: str
    gpus: int
    cells: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    hours: float = 0.0
    shards: int = 1
    merges: bool = False


def server_of(state: CellState) -> tuple[str, str]:
    """Key and name of the server that a cell needs; empty where it needs none."""
    cell = state.cell
    model = asked_model(state)
    if model is None or cell.resolution.source is not None:
        return "", ""
    trained = list(cell.resolution.inputs.get("checkpoints", ()))
    key = sha256_of(
        [model.name, spec_of(model.backend), model.run.concurrency, _place_of(model), trained]
    )
    return key, model.name + "".join(f" ({address})" for address in trained)


def gpus_of(state: CellState) -> int:
    """GPUs that one node gives to the cell."""
    if state.cell.resolution.source is not None:
        return 0
    recipe = state.cell.resolution.recipe
    if recipe is not None:
        return _training_gpus(state, recipe.launch)
    model = asked_model(state)
    if model is None or model.backend.kind not in _HAVE_GPU:
        return 0
    place = _place_of(model)
    flags = place.get("flags") or {}
    gpus = 1
    for name in _WIDE:
        gpus *= int(place.get(name) or flags.get(name) or 1)
    return gpus


def _training_gpus(state: CellState, launch: Launch) -> int:
    """Processes on one node, each with a GPU; the embedded model trains on the processor."""
    if state.cell.resolution.models["model"].backend.kind not in _HAVE_GPU:
        return 0
    told = launch.processes or launch.flags.get("num_processes")
    nodes = launch.flags.get("num_machines")
    processes = told if isinstance(told, int) else 1
    return -(-processes // nodes) if isinstance(nodes, int) else processes


def _place_of(model: Model) -> Mapping[str, Json]:
    place = getattr(model.backend, "place", None)
    return {} if place is None else dict(place.model_dump(mode="json"))


def jobs_for(states: Sequence[CellState], sizes: Mapping[str, Size], limits: Limits) -> list[Draft]:
    """Jobs that make these cells, what is needed first.

    Args:
        states: Cells to make, inputs before what reads them.
        sizes: Address to size.
        limits: How much one job may hold.
    """
    groups: dict[tuple[int, str, str], list[CellState]] = {}
    levels: dict[str, int] = {}
    keys: dict[str, str] = {}
    for state in states:
        address = state.cell.address
        keys[address] = _key_of(state)
        below = (levels[a] + (keys[a] != keys[address]) for a in state.cell.needs if a in levels)
        levels[address] = max(below, default=0)
        group = (levels[address], keys[address], "" if _may_mix(state) else state.cell.kind)
        groups.setdefault(group, []).append(state)
    drafts: list[Draft] = []
    for _, group_states in sorted(groups.items(), key=lambda item: item[0][0]):
        drafts.extend(_cut(group_states, sizes, limits))
    return _named(_linked(drafts, {s.cell.address: s for s in states}))


def _key_of(state: CellState) -> str:
    server, _ = server_of(state)
    if server:
        return server
    return state.cell.address if state.cell.kind == "train" else f"kind {state.cell.kind}"


def _may_mix(state: CellState) -> bool:
    return bool(server_of(state)[0])


def _cut(states: Sequence[CellState], sizes: Mapping[str, Size], limits: Limits) -> Iterator[Draft]:
    """One job, or several where it would grow too large; a very large cell is one of its own."""
    draft: Draft | None = None
    for state in states:
        size = sizes[state.cell.address]
        shards = _shards(state, size, limits)
        if shards > 1:
            # what came before is a job of its own, or it could wait for what waits for it
            yield from [draft] if draft is not None else []
            yield from _sharded(state, shards, size)
            draft = None
            continue
        hours = size.hours or 0.0
        if draft is not None and (
            len(draft.cells) >= limits.max_cells or draft.hours + hours > limits.max_hours
        ):
            yield draft
            draft = None
        draft = draft or _draft(state)
        draft.cells.append(state.cell.address)
        draft.hours += hours
    if draft is not None:
        yield draft


def _draft(state: CellState) -> Draft:
    server, model = server_of(state)
    return Draft("", state.cell.kind, server, model, gpus_of(state))


def _shards(state: CellState, size: Size, limits: Limits) -> int:
    if not server_of(state)[0] or size.rows is None:
        return 1
    return -(-size.rows // limits.max_rows)


def _sharded(state: CellState, shards: int, size: Size) -> Iterator[Draft]:
    asking, merging = _draft(state), _draft(state)
    asking.cells, asking.shards, asking.hours = [state.cell.address], shards, size.hours or 0.0
    yield asking
    merging.cells, merging.merges, merging.gpus, merging.server = [state.cell.address], True, 0, ""
    yield merging


def _linked(drafts: list[Draft], states: Mapping[str, CellState]) -> list[Draft]:
    """Number the jobs and let each name those that make what its cells read."""
    made_by: dict[str, Draft] = {}
    for number, draft in enumerate(drafts):
        draft.id = str(number)
        for address in draft.cells:
            if draft.merges or draft.shards == 1:
                made_by[address] = draft
    asked_by = {d.cells[0]: d for d in drafts if d.shards > 1}
    for draft in drafts:
        makers = {
            made_by[need].id: None
            for address in draft.cells
            for need in states[address].cell.needs
            if need in made_by and made_by[need] is not draft
        }
        if draft.merges:
            makers[asked_by[draft.cells[0]].id] = None
        draft.needs = sorted(makers, key=int)
    return drafts


def _named(drafts: list[Draft]) -> list[Draft]:
    """Ids that say what a job does: its stage, or `several`, and a number."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for draft in drafts:
        stages = {address.partition("/")[0] for address in draft.cells}
        base = ("merge-" if draft.merges else "") + (
            stages.pop() if len(stages) == 1 else f"{draft.kind}s"
        )
        counts[base] = counts.get(base, 0) + 1
        names[draft.id] = f"{base}-{counts[base]}"
    for draft in drafts:
        draft.needs = [names[need] for need in draft.needs]
        draft.id = names[draft.id]
    return drafts
