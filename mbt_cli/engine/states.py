"""What each cell of a study is: done, grown, stale, missing or failed, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mbt_cli.core.fingerprint import Difference, differences, fingerprint_of_stable, is_grown
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.load import Manifest
from mbt_cli.store.cells import cell_folder, read_failure
from mbt_cli.store.lineage import Lineage, read_lineage

Status = Literal["done", "grown", "stale", "missing", "failed"]
"""`grown`: finished, and only more rows are wanted now; `failed`: the last attempt failed."""


@dataclass(frozen=True)
class CellState:
    """A cell beside what is on the disk for it.

    Args:
        fingerprint: What it would have if it were made now.
        base_fingerprint: The same without sizes that may grow.
        sizes: Sizes that may grow, its inputs' too.
        lineage: Of the finished artifact, if any.
        why: For stale and grown cells the fields that differ; for failed ones the reason.
    """

    cell: Cell
    folder: Path
    status: Status
    fingerprint: str
    base_fingerprint: str
    sizes: Mapping[str, int | None]
    lineage: Lineage | None = None
    why: Sequence[str] = ()


class States:
    """States of every cell of a study, computed from manifests and lineages alone."""

    def __init__(self, manifest: Manifest, runs: Path) -> None:
        self._manifest = manifest
        self._runs = runs
        self._states: dict[str, CellState] = {}
        self.refresh(manifest.cells)

    def __getitem__(self, address: str) -> CellState:
        return self._states[address]

    def refresh(self, addresses: Iterable[str]) -> None:
        """Look at these cells again, inputs before what reads them."""
        for address in addresses:
            self._states[address] = self._state(self._manifest.cells[address])

    def all(self) -> Sequence[CellState]:
        """Every state, inputs before what reads them."""
        return [self._states[address] for address in self._manifest.cells]

    def _state(self, cell: Cell) -> CellState:
        inputs = {address: self._states[address] for address in cell.needs}
        version = type(cell.stage).version
        now = fingerprint_of_stable(
            cell.kind, version, cell.spec, {a: s.fingerprint for a, s in inputs.items()}
        )
        base = fingerprint_of_stable(
            cell.kind, version, cell.base_spec, {a: s.base_fingerprint for a, s in inputs.items()}
        )
        sizes = dict(cell.sizes)
        for state in inputs.values():
            sizes |= state.sizes
        folder = cell_folder(self._runs, self._manifest.study, cell.address)
        lineage = read_lineage(folder)
        status, why = _compared(cell, lineage, (now, base), sizes, inputs, folder)
        return CellState(cell, folder, status, now, base, sizes, lineage, why)


def _compared(
    cell: Cell,
    lineage: Lineage | None,
    prints: tuple[str, str],
    sizes: Mapping[str, int | None],
    inputs: Mapping[str, CellState],
    folder: Path,
) -> tuple[Status, Sequence[str]]:
    """Status and reasons."""
    if lineage is None:
        failure = read_failure(folder)
        return ("missing", ()) if failure is None else ("failed", (str(failure["message"]),))
    now, base = prints
    changed = [
        f"`{address}` has other bytes than when it was read"
        for address, state in inputs.items()
        if state.lineage is not None
        and address in lineage.inputs
        and state.lineage.content_sha256() != lineage.inputs[address].sha256
    ]
    late = [a for a, state in inputs.items() if a not in lineage.inputs and state.lineage]
    if lineage.fingerprint == now and late and _reads_in_part(cell):
        return "grown", [f"input `{address}` is there now" for address in late]
    if lineage.fingerprint == now:
        return ("stale", changed) if changed else ("done", ())
    if lineage.base_fingerprint == base and is_grown(lineage.sizes, sizes):
        return "grown", [str(d) for d in differences(dict(lineage.sizes), dict(sizes))]
    if joined := _joined(cell, lineage, inputs):
        return "grown", joined
    return "stale", _reasons(cell, lineage, inputs) or changed or ["another version of its stage"]


def _reads_in_part(cell: Cell) -> bool:
    return any(rule.partial for rule in cell.stage.inputs.values())


def _joined(cell: Cell, lineage: Lineage, inputs: Mapping[str, CellState]) -> list[str]:
    """Inputs that a cell which reads in part has gained, where nothing else is another one."""
    kept = [inputs.get(address) for address in lineage.inputs]
    is_same = not differences(lineage.spec, cell.spec) and all(
        state is not None and state.status != "stale" for state in kept
    )
    if not (_reads_in_part(cell) and is_same):
        return []
    return [f"input `{a}` is new" for a in inputs if a not in lineage.inputs]


def _worded(cell: Cell, difference: Difference) -> str:
    """A difference in the manifest's own names: models by name, templates by theirs."""
    part, _, rest = difference.path.partition(".")
    if part == "templates" and rest in cell.resolution.templates:
        return f"the text of the template `{cell.resolution.templates[rest].name}`"
    role, _, field = rest.partition(".")
    if part == "models" and role in cell.resolution.models:
        name = cell.resolution.models[role].name
        return str(
            replace(difference, path=f"models.{name}.{field}" if field else f"models.{name}")
        )
    return str(difference)


def _reasons(cell: Cell, lineage: Lineage, inputs: Mapping[str, CellState]) -> list[str]:
    """Fields of its own that differ, then inputs that do."""
    own = [_worded(cell, d) for d in differences(lineage.spec, cell.spec)]
    theirs = []
    for address, state in inputs.items():
        recorded = lineage.inputs.get(address)
        if recorded is None:
            theirs.append(f"input `{address}` is new")
        elif recorded.fingerprint != state.fingerprint:
            theirs.append(f"input `{address}` was made otherwise")
    gone = [f"input `{a}` is no longer read" for a in lineage.inputs if a not in inputs]
    return own + theirs + gone
