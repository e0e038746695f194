"""`--only`: which cells of a study a command takes."""

from collections.abc import Callable, Collection, Sequence
from difflib import SequenceMatcher
from functools import partial

from mbt_cli.core.addresses import matches
from mbt_cli.engine.states import States
from mbt_cli.errors import UsageError
from mbt_cli.manifest.load import Manifest

_SUGGESTIONS = 3


def select(manifest: Manifest, *, kind: str | None, only: Sequence[str]) -> list[str]:
    """Addresses of the selected cells, inputs before the cells that read them.

    Questions are selected with the cells that need them.

    Args:
        manifest: The study.
        kind: Kind of stage; None selects from all.
        only: `STAGE[/axis=glob]...` patterns; a leading `!` excludes cells.

    Raises:
        UsageError: A pattern matches nothing, or no cell is left.
    """
    of_kind = [a for a, cell in manifest.cells.items() if kind in (None, cell.kind)]
    included, excluded = _split(only)
    named = [pattern.strip("/").partition("/")[0] for pattern in included]
    if waiting := [stage for stage in named if stage in manifest.waiting]:
        included = [p for p, stage in zip(included, named, strict=True) if stage not in waiting]
        if not included:
            raise _still_waiting(manifest, waiting[0])
    if not of_kind:
        kinds = ", ".join(sorted({c.kind for c in manifest.cells.values()} - {"questions"}))
        raise UsageError(f"`{manifest.path}` has no {kind} stage", hint=f"it has {kinds}")
    for pattern in (*included, *excluded):
        if any(matches(pattern, address) for address in of_kind):
            continue
        others = {cell.kind for a, cell in manifest.cells.items() if matches(pattern, a)}
        if not others:
            raise nothing_matches(pattern, of_kind)
        other = min(others)
        verb = "run" if other == "questions" else other
        raise UsageError(
            f"`--only {pattern}` matches cells of kind {other}, which `mbt {kind}` does not make",
            hint=f"mbt {verb} {manifest.path} --only {pattern}",
        )
    chosen = {address for address in of_kind if _is_taken(included, excluded, address)}
    if not chosen:
        raise UsageError("`--only` selects no cell", hint="the patterns with `!` exclude all cells")
    needed = {a for c in chosen for a in manifest.cells[c].needs if a.startswith("questions/")}
    wanted = chosen | needed
    return [address for address in manifest.cells if address in wanted]


def taken(only: Sequence[str]) -> Callable[[str], bool]:
    """Whether `--only` takes an address, whatever cells a study has."""
    return partial(_is_taken, *_split(only))


def _is_taken(included: Sequence[str], excluded: Sequence[str], address: str) -> bool:
    named = not included or any(matches(p, address) for p in included)
    return named and not any(matches(p, address) for p in excluded)


class WaitingError(UsageError):
    """The chosen stages have no cells until a training publishes a checkpoint."""


def _still_waiting(manifest: Manifest, stage: str) -> WaitingError:
    return WaitingError(
        f"`{stage}` has no cells yet: no checkpoint that it reads is published",
        hint=f"run the training, `mbt train {manifest.path}`; or evaluate each checkpoint when it "
        f"appears, `mbt watch {manifest.path} --only {stage}`",
    )


def select_with_needs(manifest: Manifest, states: States, only: Sequence[str]) -> list[str]:
    """The selected cells and all missing cells that they need.

    A cell that accepts incomplete inputs adds no cells to an input that exists in part.

    Raises:
        UsageError: A selected cell reads a missing cell that a pattern with `!` excludes.
    """
    chosen = frozenset(select(manifest, kind=None, only=only))
    _, excluded = _split(only)
    found, waiting = set[str](), list(chosen)
    while waiting:
        address = waiting.pop()
        if address in found:
            continue
        found.add(address)
        state = states[address]
        if state.status == "done":
            continue
        missing = []
        for name, group in state.cell.resolution.inputs.items():
            absent = [a for a in group if a not in chosen and states[a].lineage is None]
            rule = state.cell.stage.inputs.get(name)
            if rule is None or not rule.partial or len(absent) == len(group):
                missing += absent
        for need in missing:
            if any(matches(pattern, need) for pattern in excluded):
                raise UsageError(
                    f"`{address}` reads `{need}`, which does not exist yet and which `!` excludes",
                    hint=f"exclude the cells that read it too: --only "
                    f"'!{address.partition('/')[0]}'",
                )
        waiting += missing
    return [address for address in manifest.cells if address in found]


def _split(only: Sequence[str]) -> tuple[list[str], list[str]]:
    """Patterns that include cells, and patterns that exclude them."""
    excluded = [p.removeprefix("!") for p in only if p.startswith("!")]
    return [p for p in only if not p.startswith("!")], excluded


def nothing_matches(
    pattern: str, addresses: Collection[str], option: str = "--only "
) -> UsageError:
    """The error for a pattern that matches no address; its hint has the nearest ones.

    Args:
        pattern: As typed.
        addresses: Those that there are.
        option: What was typed before it.
    """
    stage, *wanted = pattern.strip("/").split("/")

    def distance(address: str) -> tuple[float, float, str]:
        own, *parts = address.split("/")
        near = [max((_likeness(want, part) for part in parts), default=0.0) for want in wanted]
        return (-_likeness(stage, own), -sum(near), address)

    near = sorted(addresses, key=distance)[:_SUGGESTIONS]
    return UsageError(
        f"`{option}{pattern}` matches no cell",
        hint="the nearest are " + ", ".join(f"`{a}`" for a in near),
    )


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
