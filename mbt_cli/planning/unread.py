"""Cells that are made and that nothing reads: work one may want to leave out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mbt_cli.manifest.load import Manifest
from mbt_cli.stages.cell import Cell

_READ_BY_PEOPLE = ("score", "report")
"""Kinds whose cells are results by themselves."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Cells of one stage that nothing reads.

    Args:
        of: Cells that the stage has in all.
        apart: Axis values that tell them from the stage's cells that are read, such as
            `benchmark=musique`; empty when no axis does, or when none is read.
    """

    stage: str
    addresses: Sequence[str]
    of: int
    apart: Sequence[str]


def unread(manifest: Manifest) -> list[Unread]:
    """What nothing reads, stage by stage in the manifest's order."""
    read = {address for cell in manifest.cells.values() for address in cell.needs}
    stages: dict[str, list[Cell]] = {}
    for address, cell in manifest.cells.items():
        if cell.kind not in _READ_BY_PEOPLE:
            stages.setdefault(address.partition("/")[0], []).append(cell)
    found = []
    for stage, cells in stages.items():
        lonely = [cell for cell in cells if cell.address not in read]
        if lonely:
            others = [cell for cell in cells if cell.address in read]
            addresses = [cell.address for cell in lonely]
            found.append(Unread(stage, addresses, len(cells), _apart(lonely, others)))
    return found


def _apart(lonely: Sequence[Cell], others: Sequence[Cell]) -> list[str]:
    if not others:
        return []
    own, theirs = _values(lonely), _values(others)
    return [
        f"{axis}={value}"
        for axis, values in own.items()
        if not set(values) & set(theirs.get(axis, ()))
        for value in values
    ]


def _values(cells: Sequence[Cell]) -> Mapping[str, Mapping[str, None]]:
    """Axis to its values, each once in order."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for axis, value in cell.resolution.axes.items():
            found.setdefault(axis, {})[value] = None
    return found
