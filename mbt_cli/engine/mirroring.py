"""The mirror of a study around its runs: down before, up meanwhile."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

from mbt_cli.core.addresses import STEP
from mbt_cli.core.number_text import counted
from mbt_cli.errors import UsageError
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine
from mbt_cli.store.mirror import Came, Mirror, Mirroring


def brought_down(
    manifest: Manifest,
    machine: Machine,
    choose: Callable[[Manifest], Collection[str]],
    say: Callable[[str], None],
) -> Manifest:
    """Fetch what other machines have of the chosen cells and their inputs.

    Args:
        manifest: The study.
        machine: Where its mirror is; without one, nothing is done.
        choose: The cells that will run.
        say: Takes a line about what has come.

    Returns:
        The manifest, loaded again where something came.

    Raises:
        MbtError: The mirror did not answer: a run without its replies would ask them again.
    """
    if machine.mirror is None:
        return manifest
    try:
        wanted = _with_inputs(manifest, choose(manifest))
    except UsageError:  # stages that wait for a training's first checkpoint
        wanted = set(manifest.cells)
    came = Mirror(machine.mirror, machine.runs, manifest.study).pull(
        lambda address: address in wanted or address.partition(f"/{STEP}=")[0] in wanted
    )
    if not came:
        return manifest
    say(came_text(came, machine.mirror))
    return manifest if manifest.load is None else manifest.load()


def mirroring(
    manifest: Manifest, machine: Machine, note: Callable[[str], None]
) -> AbstractContextManager[object]:
    """Upload in the background while the context lasts, if the study has a mirror."""
    if machine.mirror is None:
        return nullcontext()
    mirror = Mirror(machine.mirror, machine.runs, manifest.study)
    return Mirroring(mirror, manifest.document.run.mirror_seconds, note)


def came_text(came: Came, mirror: str) -> str:
    """What has come down, in one line."""
    cells, begun = counted(len(came.cells), "finished cell"), len(came.journals)
    more = f" and parts of {counted(begun, 'other cell')}" if begun else ""
    return f"from {mirror}: {cells}{more}, {came.bytes / 1e6:,.1f} MB"


def _with_inputs(manifest: Manifest, addresses: Collection[str]) -> set[str]:
    found, left = set[str](), list(addresses)
    while left:
        address = left.pop()
        if address not in found and address in manifest.cells:
            found.add(address)
            left += manifest.cells[address].needs
    return found
