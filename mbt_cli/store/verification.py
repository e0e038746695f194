"""Verifying cells with everything that they were made from: each cell once, every byte of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mbt_cli.errors import ArtifactError
from mbt_cli.store.cells import REPLACED
from mbt_cli.store.lineage import LINEAGE, InputRecord, Lineage, read_lineage
from mbt_cli.store.reading import verify


@dataclass(slots=True)
class Verification:
    """The result of `verify_ancestry`.

    Args:
        cells: Cells whose files were read, those that others were made from included.
        files: Their files.
        bytes: Length of these files.
        problems: What differs, each with the path or the address of its cell.
        unsealed: Addresses of cells of mbt 0.2, whose lineage holds no hash of itself.
        apart: Folders of replaced cells, of which only their own files were verified.
    """

    cells: int = 0
    files: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    unsealed: list[str] = field(default_factory=list)
    apart: list[Path] = field(default_factory=list)


def verify_ancestry(folders: Iterable[Path]) -> Verification:
    """Verify finished cells and, back to the questions, every cell that they were made from.

    Each file is compared with its lineage, each lineage with its own hash, and each input with
    what the cell that read it has recorded.
    """
    walk = _Walk()
    todo = dict.fromkeys(_absolute(folder) for folder in folders)
    done: set[Path] = set()
    while todo:
        folder, _ = todo.popitem()
        done.add(folder)
        cell = walk.cell(folder)
        if cell is None or REPLACED in folder.parts:
            continue
        study, address = _place(folder)
        for below, record in cell.lineage.inputs.items():
            walk.compare(study / below, below, record, address)
            if study / below not in done:
                todo[study / below] = None
    return walk.finish()


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell whose own files have been verified."""

    lineage: Lineage
    content_sha256: str
    meaning_sha256: str


class _Walk:
    def __init__(self) -> None:
        self.cells: dict[Path, _Cell | None] = {}
        self._result = Verification()
        self._readers: dict[str, list[str]] = {}

    def cell(self, folder: Path) -> _Cell | None:
        """The cell in a folder, verified when it is met first; None if it cannot be read."""
        if folder not in self.cells:
            self.cells[folder] = self._verified(folder)
        return self.cells[folder]

    def _verified(self, folder: Path) -> _Cell | None:
        result = self._result
        try:
            lineage = read_lineage(folder)
        except ArtifactError as error:
            result.problems.append(error.message)
            return None
        if lineage is None:
            return None
        try:
            result.problems += verify(folder, lineage)
        except ArtifactError as error:
            result.problems.append(error.message)
        except OSError as error:
            result.problems.append(f"`{error.filename or folder}` cannot be read: {error.strerror}")
        result.cells += 1
        result.files += len(lineage.files)
        result.bytes += sum(record.bytes for record in lineage.files.values())
        if lineage.sha256 is None:
            result.unsealed.append(lineage.address)
        if REPLACED in folder.parts:
            result.apart.append(folder)
        elif lineage.address != _place(folder)[1]:
            result.problems.append(f"`{folder}` holds the cell `{lineage.address}`")
        return _Cell(lineage, lineage.content_sha256(), lineage.meaning_sha256())

    def compare(self, folder: Path, address: str, record: InputRecord, reader: str) -> None:
        """Compare an input with what the cell that read it has recorded."""
        cell = self.cell(folder)
        if cell is None:
            if not (folder / LINEAGE).exists():
                self._add(f"`{address}` no longer exists", reader)
        elif cell.content_sha256 != record.sha256:
            self._add(f"`{address}` has other files now than those that were read", reader)
        elif cell.lineage.fingerprint != record.fingerprint:
            self._add(f"`{address}` has another fingerprint now than when it was read", reader)
        elif record.lineage_sha256 not in (None, cell.meaning_sha256):
            self._add(f"the lineage of `{address}` is not the one that was read", reader)
        elif record.lineage_sha256 is not None and cell.lineage.sha256 is None:
            self._add(f"the lineage of `{address}` has lost the hash that it had", reader)

    def _add(self, problem: str, reader: str) -> None:
        self._readers.setdefault(problem, []).append(reader)

    def finish(self) -> Verification:
        for problem, readers in sorted(self._readers.items()):
            first, *others = sorted(readers)
            more = f" and {len(others):,} more" if others else ""
            self._result.problems.append(f"{problem} (by `{first}`{more})")
        return self._result


def _absolute(folder: Path) -> Path:
    return folder.resolve() if ".." in folder.parts else folder.absolute()


def _place(folder: Path) -> tuple[Path, str]:
    """The study's folder and the address of a cell, from its path."""
    stage = next(place for place in (folder, *folder.parents) if "=" not in place.name)
    return stage.parent, folder.relative_to(stage.parent).as_posix()
