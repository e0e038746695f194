"""The state of each cell of a study: done, grown, stale, missing or failed, and why."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from mbt_cli.core.chat import Json
from mbt_cli.core.fingerprint import Difference, differences, fingerprint_of_stable, is_grown
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.load import Manifest
from mbt_cli.store.cells import cell_folder, read_failure
from mbt_cli.store.lineage import Lineage, read_lineage

Status = Literal["done", "grown", "stale", "missing", "failed"]
"""`grown`: finished, but the manifest asks for more rows; `failed`: the last run failed."""


@dataclass(frozen=True)
class CellState:
    """A cell and its artifact on disk.

    Args:
        fingerprint: The fingerprint it would have if it were made now.
        base_fingerprint: The same without the sizes that may grow.
        older_fingerprint: That of mbt 0.2, which also counted settings that the stage does not
            read; None if it reads all of them. Cells that were made from it stay done.
        sizes: Sizes that may grow, those of its inputs included.
        lineage: The lineage of the finished artifact, if any.
        why: The fields that differ, for stale and grown cells; the error, for failed ones.
    """

    cell: Cell
    folder: Path
    status: Status
    fingerprint: str
    base_fingerprint: str
    sizes: Mapping[str, int | None]
    lineage: Lineage | None = None
    why: Sequence[str] = ()
    older_fingerprint: str | None = None

    @cached_property
    def content_sha256(self) -> str | None:
        """The hash of the finished artifact, computed once although many cells may read it."""
        return None if self.lineage is None else self.lineage.content_sha256()


class States:
    """The states of a study's cells, from manifest and lineages alone.

    The state of a cell is read when it is first asked for, with those of the cells that it was
    made from: a job reads the lineages of its own cells and their ancestors, whatever the study.
    """

    def __init__(self, manifest: Manifest, runs: Path) -> None:
        self._manifest = manifest
        self._runs = runs
        self._states: dict[str, CellState] = {}

    @property
    def manifest(self) -> Manifest:
        """The study."""
        return self._manifest

    @property
    def study_folder(self) -> Path:
        """Folder of the whole study."""
        return self._runs / self._manifest.study

    def __getitem__(self, address: str) -> CellState:
        self._read(address)
        return self._states[address]

    def __contains__(self, address: str) -> bool:
        return address in self._manifest.cells

    def refresh(self, addresses: Iterable[str]) -> None:
        """Read the states of these cells again; inputs come before the cells that read them."""
        for address in addresses:
            for need in self._manifest.cells[address].needs:
                self._read(need)
            self._states[address] = self._state(self._manifest.cells[address])

    def _read(self, address: str) -> None:
        """Read a state after those of its inputs; no recursion, since chains may be long."""
        waiting = [] if address in self._states else [address]
        while waiting:
            cell = self._manifest.cells[waiting[-1]]
            if unread := [need for need in cell.needs if need not in self._states]:
                waiting += unread
                continue
            if cell.address not in self._states:
                self._states[cell.address] = self._state(cell)
            waiting.pop()

    def made_otherwise(self, addresses: Iterable[str]) -> Sequence[CellState]:
        """Finished cells among these and all that they read that the manifest would make otherwise.

        Inputs come first; addresses that the manifest no longer has are left out.
        """
        behind: dict[str, CellState] = {}

        def visit(address: str) -> None:
            if address in self and address not in behind:
                for below in self[address].cell.needs:
                    visit(below)
                behind[address] = self[address]

        for address in addresses:
            visit(address)
        return [state for state in behind.values() if state.status in ("stale", "grown")]

    def all(self) -> Sequence[CellState]:
        """Every state, inputs before the cells that read them."""
        return [self[address] for address in self._manifest.cells]

    def _state(self, cell: Cell) -> CellState:
        inputs = {address: self._states[address] for address in cell.needs}
        folder = cell_folder(self._runs, self._manifest.study, cell.address)
        lineage = read_lineage(folder)
        spec, base_spec, sizes = _read(cell, cell.spec), cell.base_spec, cell.sizes
        now, base = _fingerprints(cell, spec, _read(cell, base_spec), inputs, lineage)
        if lineage is not None and lineage.base_fingerprint != base:
            older = _fingerprints(cell, spec, _read(cell, cell.older_base_spec), inputs, lineage)[1]
            if lineage.base_fingerprint == older:  # it keeps the form that what reads it recorded
                base, sizes = older, cell.older_sizes
        sizes = dict(sizes)
        for other in inputs.values():
            sizes |= other.sizes
        state = CellState(cell, folder, "missing", now, base, sizes, lineage)
        status, why = _status(state, inputs)
        state = replace(state, status=status, why=why)
        return state if spec is cell.spec else _older(state, inputs)


def _read(cell: Cell, spec: Json) -> Json:
    return cell.stage.part_read(spec, cell.resolution)


def _fingerprints(
    cell: Cell,
    spec: Json,
    base_spec: Json,
    inputs: Mapping[str, CellState],
    lineage: Lineage | None,
) -> tuple[str, str]:
    """The fingerprint and the base fingerprint of a cell with these specs."""
    version = type(cell.stage).version
    recorded = {} if lineage is None else lineage.inputs
    now = {
        address: state.older_fingerprint
        if address in recorded and recorded[address].fingerprint == state.older_fingerprint
        else state.fingerprint
        for address, state in inputs.items()
    }
    base = {address: state.base_fingerprint for address, state in inputs.items()}
    return (
        fingerprint_of_stable(cell.kind, version, spec, now),
        fingerprint_of_stable(cell.kind, version, base_spec, base),
    )


def _older(state: CellState, inputs: Mapping[str, CellState]) -> CellState:
    """The state of a cell that does not read its whole spec; mbt 0.2 counted the whole spec.

    An artifact of mbt 0.2 may differ from the cell in settings that are not read: then it is
    recognized by its own spec.
    """
    cell, lineage = state.cell, state.lineage
    spec, base_spec = cell.spec, cell.base_spec
    is_equal = lineage is None or lineage.spec == spec
    if lineage is not None and not differences(_read(cell, lineage.spec), _read(cell, spec)):
        spec, base_spec = lineage.spec, lineage.spec if base_spec == spec else base_spec
    now, base = _fingerprints(cell, spec, base_spec, inputs, lineage)
    state = replace(state, older_fingerprint=now)
    if state.status != "stale":
        return state
    older = replace(state, fingerprint=now, base_fingerprint=base)
    status, why = _status(older, inputs)
    if status == "done" or (status == "grown" and is_equal):
        return replace(older, status=status, why=why)
    return replace(state, status=status, why=why)


def _status(state: CellState, inputs: Mapping[str, CellState]) -> tuple[Status, Sequence[str]]:
    """Status and reasons, from the lineage of the artifact and the states of the inputs."""
    cell, lineage = state.cell, state.lineage
    if lineage is None:
        failure = read_failure(state.folder)
        return ("missing", ()) if failure is None else ("failed", (str(failure["message"]),))
    changed = [
        f"`{address}` has changed since it was read"
        for address, other in inputs.items()
        if other.lineage is not None
        and address in lineage.inputs
        and other.content_sha256 != lineage.inputs[address].sha256
    ]
    new = [address for address in inputs if address not in lineage.inputs]
    is_partial = any(rule.partial for rule in cell.stage.inputs.values())
    if lineage.fingerprint == state.fingerprint:
        made = [f"input `{address}` exists now" for address in new if inputs[address].lineage]
        if made and is_partial:
            return "grown", made
        if not changed and (outdated := cell.stage.outdated(lineage.notes, cell.resolution)):
            return "grown", [outdated]
        return ("stale", changed) if changed else ("done", ())
    if lineage.base_fingerprint == state.base_fingerprint and is_grown(lineage.sizes, state.sizes):
        return "grown", [*_growth(lineage.sizes, state.sizes)]
    own = differences(_read(cell, lineage.spec), _read(cell, cell.spec))
    kept = [inputs.get(address) for address in lineage.inputs]
    is_same = not own and all(other is not None and other.status != "stale" for other in kept)
    if new and is_partial and is_same:
        return "grown", [f"input `{address}` is new" for address in new]
    reasons = [_in_manifest_names(cell, difference) for difference in own]
    for address, other in inputs.items():
        recorded = lineage.inputs.get(address)
        if recorded is None:
            reasons.append(f"input `{address}` is new")
        elif recorded.fingerprint not in (other.fingerprint, other.older_fingerprint):
            reasons.append(f"input `{address}` has another fingerprint")
    reasons += [f"input `{a}` is no longer read" for a in lineage.inputs if a not in inputs]
    return "stale", reasons or changed or ["its stage has another version"]


def _growth(old: Mapping[str, int | None], new: Mapping[str, int | None]) -> Iterator[str]:
    for difference in differences(dict(old), dict(new)):
        path, is_member, member = difference.path.partition("[")
        # without the hash that tells two members of a kind apart
        kind = member.partition(" ")[0]
        yield f"`{path}` has `{kind}` now" if is_member else str(difference)


def _in_manifest_names(cell: Cell, difference: Difference) -> str:
    """A difference, with models and templates by the names that the manifest gives them."""
    part, _, rest = difference.path.partition(".")
    if part == "templates" and rest in cell.resolution.templates:
        return f"the text of the template `{cell.resolution.templates[rest].name}`"
    role, _, field = rest.partition(".")
    if part == "models" and role in cell.resolution.models:
        name = cell.resolution.models[role].name
        path = f"models.{name}.{field}" if field else f"models.{name}"
        return str(replace(difference, path=path))
    return str(difference)
