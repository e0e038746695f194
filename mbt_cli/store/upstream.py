"""What finished cells stand on, by what their lineages say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mbt_cli.core.addresses import axes_of
from mbt_cli.store.lineage import Lineage, read_lineage


@dataclass(frozen=True, slots=True)
class Upstream:
    """Cells and everything behind them.

    Args:
        cells: Address to lineage, the cells themselves included, inputs before what reads them.
        lost: Addresses of inputs that are no longer there.
        changed: Addresses of inputs that have other bytes now than when they were read.
    """

    cells: Mapping[str, Lineage]
    lost: Sequence[str]
    changed: Sequence[str]

    def of_kind(self, kind: str) -> list[Lineage]:
        """Cells of one kind, by address."""
        return [cell for _, cell in sorted(self.cells.items()) if cell.kind == kind]

    def inputs(self, cell: Lineage, kind: str) -> list[Lineage]:
        """The inputs of one kind that a cell has and that are still there."""
        found = (self.cells.get(address) for address in cell.inputs)
        return [below for below in found if below is not None and below.kind == kind]


def upstream(study_folder: Path, addresses: Iterable[str]) -> Upstream:
    """Follow lineages from cells of a study back to the questions.

    Args:
        study_folder: `runs/<study>`.
        addresses: Where to start; those that are not finished count as lost.

    Raises:
        ArtifactError: A lineage is damaged or of an unknown layout.
    """
    found: dict[str, Lineage] = {}
    lost: list[str] = []
    changed: set[str] = set()

    def visit(address: str, sha256: str | None) -> None:
        cell = found.get(address) or read_lineage(study_folder / address)
        if cell is None:
            lost.append(address)
            return
        if sha256 is not None and cell.content_sha256() != sha256:
            changed.add(address)
        if address in found:
            return
        for below, record in cell.inputs.items():
            visit(below, record.sha256)
        found[address] = cell

    for address in addresses:
        visit(address, None)
    return Upstream(found, sorted(set(lost)), sorted(changed))


def own_rollouts(found: Upstream, cell: Lineage) -> list[Lineage]:
    """The rollouts that a score or judge cell is about, those of its baseline left out."""
    rollouts = found.inputs(cell, "rollout")
    axes = axes_of(cell.address)
    agreeing = {r.address: _agreement(axes, axes_of(r.address)) for r in rollouts}
    best = max(agreeing.values(), default=0)
    return [rollout for rollout in rollouts if agreeing[rollout.address] == best]


def _agreement(axes: Mapping[str, str], others: Mapping[str, str]) -> int:
    return sum(others.get(axis) == value for axis, value in axes.items())
