"""Reading artifacts: finished ones only, and only files that match their lineage."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mbt_cli.core.addresses import axes_of
from mbt_cli.errors import ArtifactError, MissingInputError
from mbt_cli.store.cells import FILES
from mbt_cli.store.disk import sha256_of_file
from mbt_cli.store.lineage import LINEAGE, ROWS, Lineage, read_lineage
from mbt_cli.store.parquet import FINGERPRINT_KEY, footer_metadata, row_count

_SHOWN_PROBLEMS = 10
_HINT = "restore the file, or move its cell's folder away and run the same command again"


def require_lineage(folder: Path) -> Lineage:
    """The lineage of a finished cell.

    Raises:
        MissingInputError: The cell is not finished.
        ArtifactError: lineage.json is damaged or has an unknown layout.
    """
    lineage = read_lineage(folder)
    if lineage is None:
        raise MissingInputError(f"`{folder}` has no finished artifact")
    return lineage


def read_rows(folder: Path, lineage: Lineage | None = None) -> pl.LazyFrame:
    """Rows of a finished cell. Length, footer and fingerprint are checked, the hash is not.

    Raises:
        MissingInputError: The cell is not finished.
        ArtifactError: rows.parquet does not match its lineage.
    """
    return read_parquet_file(folder, ROWS, lineage or require_lineage(folder))


def read_parquet_file(folder: Path, name: str, lineage: Lineage) -> pl.LazyFrame:
    """A Parquet file of an artifact, such as `files/summary.parquet`, checked like its rows."""
    problems = list(_quick_problems(folder, name, lineage))
    if problems:
        raise ArtifactError(problems[0], hint=_HINT)
    return pl.scan_parquet(folder / name, glob=False, hive_partitioning=False)


def verify(folder: Path, lineage: Lineage | None = None) -> list[str]:
    """Every difference between a finished cell's own files and its lineage; reads every byte.

    Raises:
        MissingInputError: The cell is not finished.
        ArtifactError: lineage.json is damaged or has an unknown layout.
    """
    lineage = lineage or require_lineage(folder)
    problems = list(_content_problems(folder, lineage))
    if not problems and ROWS in lineage.files and row_count(folder / ROWS) != lineage.rows:
        problems.append(
            f"`{folder / ROWS}` has {row_count(folder / ROWS)} rows, its lineage says "
            f"{lineage.rows}"
        )
    for path in sorted((folder / FILES).rglob("*")):
        if path.is_file() and path.relative_to(folder).as_posix() not in lineage.files:
            problems.append(f"`{path}` is not in the lineage")
    return problems


def input_sha256(folder: Path, lineage: Lineage | None = None) -> str:
    """The hash of an artifact that becomes an input, after reading every byte of it.

    Returns:
        `Lineage.content_sha256`, which enters the lineage of the cell that reads it.

    Raises:
        MissingInputError: The cell is not finished.
        ArtifactError: A file does not match its lineage.
    """
    lineage = lineage or require_lineage(folder)
    for problem in _content_problems(folder, lineage):
        raise ArtifactError(problem, hint=_HINT)
    return lineage.content_sha256()


def finished_cells(folder: Path) -> list[tuple[Path, Lineage]]:
    """Folder and lineage of every finished cell of a stage or a study, by address.

    Folders inside a cell are not searched.
    """
    return [(cell, require_lineage(cell)) for cell in _cell_folders(folder, is_top=True)]


def _cell_folders(folder: Path, *, is_top: bool = False) -> Iterator[Path]:
    if (folder / LINEAGE).is_file():
        yield folder
        return
    inside = sorted(path for path in folder.glob("*") if path.is_dir())
    for path in inside:
        if "=" in path.name or (is_top and not path.name.startswith(".")):
            yield from _cell_folders(path)


def scan_study(study_folder: Path, stage: str | None = None, name: str = ROWS) -> pl.LazyFrame:
    """A Parquet file of every finished cell of a study, with `stage` and all axes as text columns.

    Args:
        study_folder: `runs/<study>`.
        stage: Name of one stage; None for all.
        name: The file in each cell; cells without it are left out.

    Returns:
        The files' columns, then `stage`, `address` and one column per axis. Columns whose types
        differ between stages are widened.

    Raises:
        MissingInputError: No finished cell has such a file.
        ArtifactError: A file does not match its lineage.
    """
    folder = study_folder if stage is None else study_folder / stage
    cells = [(cell, found) for cell, found in finished_cells(folder) if name in found.files]
    if not cells:
        what = "artifact" if name == ROWS else f"artifact with a `{name}`"
        raise MissingInputError(
            f"`{folder}` has no finished {what}", hint=_stages_hint(study_folder)
        )
    return pl.concat([_scanned(*cell, name) for cell in cells], how="diagonal_relaxed")


def _scanned(folder: Path, lineage: Lineage, name: str) -> pl.LazyFrame:
    own = {"stage": lineage.stage, "address": lineage.address, **axes_of(lineage.address)}
    rows = read_parquet_file(folder, name, lineage)
    return rows.with_columns(pl.lit(value).alias(column) for column, value in own.items())


def _stages_hint(study_folder: Path) -> str | None:
    stages = sorted({lineage.stage for _, lineage in finished_cells(study_folder)})
    return "finished cells are in " + ", ".join(f"`{s}`" for s in stages) if stages else None


def check_files(cells: Iterable[tuple[Path, Lineage]]) -> None:
    """Check that every file of these finished cells exists and has its length.

    Raises:
        ArtifactError: Files are missing or cut off; names the first of each cell.
    """
    problems = []
    for folder, lineage in cells:
        found = [problem for name in lineage.files for problem in _on_disk(folder, name, lineage)]
        if found and read_lineage(folder) == lineage:  # else it is being replaced right now
            problems.append(found[0])
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + ([f"and {more} more cells"] if more > 0 else [])
        raise ArtifactError("\n".join(shown), hint=_HINT)


def _on_disk(folder: Path, name: str, lineage: Lineage) -> Iterator[str]:
    path, record = folder / name, lineage.files[name]
    try:
        length = path.stat().st_size
    except FileNotFoundError:
        yield f"`{path}` is missing"
        return
    if length != record.bytes:
        yield f"`{path}` has {length} bytes, its lineage says {record.bytes}"


def _quick_problems(folder: Path, name: str, lineage: Lineage) -> Iterator[str]:
    path = folder / name
    if name not in lineage.files:
        yield f"`{folder}` has no file `{name}` according to its lineage"
        return
    wrong = list(_on_disk(folder, name, lineage))
    yield from wrong
    if not wrong and path.suffix == ".parquet":
        found = footer_metadata(path).get(FINGERPRINT_KEY, lineage.fingerprint)
        if found != lineage.fingerprint:
            yield (
                f"`{path}` was made with the fingerprint {found[:12]}…, its lineage says "
                f"{lineage.fingerprint[:12]}…"
            )


def _content_problems(folder: Path, lineage: Lineage) -> Iterator[str]:
    for name, record in lineage.files.items():
        quick = list(_quick_problems(folder, name, lineage))
        yield from quick
        if not quick and sha256_of_file(folder / name) != record.sha256:
            yield f"`{folder / name}` differs from its lineage (sha256)"


@dataclass(frozen=True, slots=True)
class Upstream:
    """Cells and everything they were made from.

    Args:
        cells: Address to lineage, including the cells themselves; inputs come first.
        lost: Addresses of inputs that no longer exist.
        changed: Addresses of inputs whose content changed after they were read.
    """

    cells: Mapping[str, Lineage]
    lost: Sequence[str]
    changed: Sequence[str]

    def of_kind(self, kind: str) -> list[Lineage]:
        """Cells of one kind, by address."""
        return [cell for _, cell in sorted(self.cells.items()) if cell.kind == kind]

    def inputs(self, cell: Lineage, kind: str) -> list[Lineage]:
        """The existing inputs of a cell of one kind."""
        found = (self.cells.get(address) for address in cell.inputs)
        return [below for below in found if below is not None and below.kind == kind]


def upstream(study_folder: Path, addresses: Iterable[str]) -> Upstream:
    """Follow the lineages of cells back to the questions.

    Args:
        study_folder: `runs/<study>`.
        addresses: The cells to start from; unfinished ones count as lost.

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
    """The rollouts that a score or judge cell is about, without those of its baseline."""
    rollouts = found.inputs(cell, "rollout")
    axes = axes_of(cell.address).items()
    shared = {one.address: len(axes & axes_of(one.address).items()) for one in rollouts}
    most = max(shared.values(), default=0)
    return [rollout for rollout in rollouts if shared[rollout.address] == most]
