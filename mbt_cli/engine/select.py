"""`--only`: which cells of a study a command takes."""

from collections.abc import Collection, Iterator, Sequence
from difflib import SequenceMatcher

from mbt_cli.core.addresses import matches
from mbt_cli.engine.states import CellState, States
from mbt_cli.errors import UsageError
from mbt_cli.manifest.load import Manifest

_SHOWN = 3


def select(manifest: Manifest, *, kind: str | None, only: Sequence[str]) -> list[str]:
    """Addresses to take, inputs before what reads them; questions come with what needs them.

    Args:
        manifest: The study.
        kind: Kind of stage that a verb runs; None for all.
        only: `STAGE[/axis=glob]...` patterns; a leading `!` leaves cells out.

    Raises:
        UsageError: Nothing matches; names the nearest addresses.
    """
    of_kind = [a for a, cell in manifest.cells.items() if kind in (None, cell.kind)]
    if not of_kind:
        kinds = ", ".join(sorted({c.kind for c in manifest.cells.values()} - {"questions"}))
        raise UsageError(f"`{manifest.path}` has no {kind} stage", hint=f"it has {kinds}")
    wanted = [p for p in only if not p.startswith("!")]
    unwanted = [p.removeprefix("!") for p in only if p.startswith("!")]
    for pattern in (*wanted, *unwanted):
        if not any(matches(pattern, address) for address in of_kind):
            raise _of_other_kind(pattern, manifest, kind) or nothing_matches(pattern, of_kind)
    chosen = {
        address
        for address in of_kind
        if (not wanted or any(matches(p, address) for p in wanted))
        and not any(matches(p, address) for p in unwanted)
    }
    if not chosen:
        raise UsageError("`--only` leaves no cell", hint="what `!` leaves out is all there was")
    needed = {a for c in chosen for a in manifest.cells[c].needs if a.startswith("questions/")}
    return [address for address in manifest.cells if address in chosen | needed]


def with_what_they_need(manifest: Manifest, states: States, only: Sequence[str]) -> list[str]:
    """What `only` takes and, below that, all that is not made yet: jobs that need nothing else.

    A cell that reads in part brings nothing along where some of what it reads is there.

    Raises:
        UsageError: A cell reads one that `!` leaves out and that is not there.
    """
    chosen = frozenset(select(manifest, kind=None, only=only))
    unwanted = [p.removeprefix("!") for p in only if p.startswith("!")]
    taken, waiting = set[str](), list(chosen)
    while waiting:
        address = waiting.pop()
        if address in taken:
            continue
        taken.add(address)
        if states[address].status == "done":
            continue
        for missing in _not_there(states[address], states, chosen):
            if any(matches(p, missing) for p in unwanted):
                raise UsageError(
                    f"`{address}` reads `{missing}`, which is not made yet and which `!` leaves "
                    "out",
                    hint=f"leave out what reads it too: --only '!{address.partition('/')[0]}'",
                )
            waiting.append(missing)
    return [address for address in manifest.cells if address in taken]


def _not_there(state: CellState, states: States, chosen: Collection[str]) -> Iterator[str]:
    for name, group in state.cell.resolution.inputs.items():
        missing = [a for a in group if a not in chosen and states[a].lineage is None]
        rule = state.cell.stage.inputs.get(name)
        if rule is None or not rule.partial or len(missing) == len(group):
            yield from missing


def _of_other_kind(pattern: str, manifest: Manifest, kind: str | None) -> UsageError | None:
    """What to say of cells that are there and that another verb makes."""
    found = {cell.kind for a, cell in manifest.cells.items() if matches(pattern, a)} - {kind}
    if not found:
        return None
    other = sorted(found)[0]
    verb = "run" if other == "questions" else other
    return UsageError(
        f"`--only {pattern}` matches cells of kind {other}, and `mbt {kind}` makes none of those",
        hint=f"mbt {verb} {manifest.path} --only {pattern}",
    )


def nothing_matches(pattern: str, addresses: Collection[str]) -> UsageError:
    """What to say of an `--only` that fits no address: the nearest ones."""
    near = sorted(addresses, key=lambda address: _distance(pattern, address))[:_SHOWN]
    return UsageError(
        f"`--only {pattern}` matches no cell",
        hint="the nearest are " + ", ".join(f"`{a}`" for a in near),
    )


def _distance(pattern: str, address: str) -> tuple[float, float, str]:
    """How far an address is from a pattern: by its stage first, then part by part."""
    stage, *wanted = pattern.strip("/").split("/")
    own, *parts = address.split("/")
    near = [max((_likeness(want, part) for part in parts), default=0.0) for want in wanted]
    return (-_likeness(stage, own), -sum(near), address)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
