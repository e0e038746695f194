"""Load a manifest: text to checked cells, or every problem at once."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from mbt_cli.errors import ManifestError, MissingInputError, Problem, UsageError
from mbt_cli.manifest.blocks import Axes, Block, read_block
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.expand import Expansion
from mbt_cli.manifest.match import Meeting
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems, with_overrides
from mbt_cli.manifest.resolve import Models, Resolver
from mbt_cli.manifest.schema import Document
from mbt_cli.manifest.sources import without_missing_sources
from mbt_cli.manifest.tables import read_document
from mbt_cli.manifest.toml import manifest_text, read_manifest_tree
from mbt_cli.plugins import use_study_plugins
from mbt_cli.store.questions import check_split
from mbt_cli.store.records import data_files


@dataclass(frozen=True)
class Manifest:
    """A checked study.

    Args:
        cells: Address to cell, inputs before what reads them.
        left_out: Addresses of optional cells whose source is not there.
        tree: The merged text, as a dictionary.
    """

    path: Path
    document: Document
    cells: Mapping[str, Cell]
    left_out: Sequence[str] = ()
    tree: Mapping[str, Any] = field(default_factory=dict)

    @property
    def study(self) -> str:
        """Name of the study."""
        return self.document.study.name

    def counts(self) -> Mapping[str, int]:
        """Number of cells of each stage, in the manifest's order."""
        return Counter(cell.resolution.address.split("/")[0] for cell in self.cells.values())


def load_manifest(path: Path, *, presets: PresetFolders, overrides: Sequence[str] = ()) -> Manifest:
    """Read, merge, check and expand a manifest.

    Raises:
        ManifestError: Something is wrong with it; holds every problem found.
        UsageError: The file is not there, or an override is not KEY=VALUE.
    """
    tree = read_manifest_tree(path, overrides)
    _refuse_unreadable(path, tree)
    _load_plugins(path, tree)
    problems = Problems()
    document = read_document(tree, problems)
    _check_files(document, problems)
    blocks = _blocks(document, problems)
    models = Models(document, presets, problems)
    models.check_all()
    meeting = _expanded(document, blocks, problems)
    drafts = [*meeting.questions.values(), *(d for ds in meeting.stages.values() for d in ds)]
    text = manifest_text(path, overrides)
    resolver = Resolver(document, models, path.parent, problems, text)
    drafts, left_out = without_missing_sources(drafts)
    cells = [cell for draft in drafts if (cell := resolver.cell(draft)) is not None]
    for block in blocks:
        if not meeting.stages[block.name]:
            resolver.check_alone(block)
    if not blocks and not problems:
        problems.add("stage", "there is no stage")
    _check_splits(cells, problems)
    if problems:
        raise ManifestError(str(path), with_overrides(problems.all(), overrides))
    return Manifest(path, document, {c.address: c for c in cells}, left_out, tree)


def _refuse_unreadable(path: Path, tree: Mapping[str, Any]) -> None:
    """Say first what would make every other problem a consequence: no text, or a newer mbt's."""
    if not tree:
        what = "holds no table; a manifest begins with `[study]`"
        raise ManifestError(str(path), [Problem("file", what)], hint="mbt help manifest")
    study = tree.get("study")
    wanted = study.get("mbt") if isinstance(study, dict) else None
    own = metadata.version("mbt-cli")
    if isinstance(wanted, str) and _numbers(wanted) > _numbers(own):
        what = f"`{wanted}`: is the oldest mbt that reads this manifest, and this is mbt {own}"
        hint = 'python -m pip install --upgrade "mbt-cli"'
        raise ManifestError(str(path), [Problem("study.mbt", what)], hint=hint)


def _load_plugins(path: Path, tree: Mapping[str, Any]) -> None:
    """Load the study's own plug-ins before its tables are read; without them no table is clear."""
    study = tree.get("study")
    written = study.get("plugins") if isinstance(study, dict) else None
    files = [file for file in written if isinstance(file, str)] if isinstance(written, list) else []
    wrong = use_study_plugins([Path(file).expanduser() for file in files])
    if wrong:
        raise ManifestError(
            str(path),
            [
                Problem(f"study.plugins.{number}", f"`{file}`: {wrong[Path(file).expanduser()]}")
                for number, file in enumerate(files)
                if Path(file).expanduser() in wrong
            ],
            hint="mbt help extend",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _check_splits(cells: Sequence[Cell], problems: Problems) -> None:
    """Splits that a benchmark does not have, as far as no file or hub has to be asked."""
    for cell in cells:
        benchmark, split = cell.resolution.benchmark, cell.resolution.axes.get("split")
        if cell.kind != "questions" or benchmark is None or split is None:
            continue
        try:
            check_split(benchmark, split, generate=benchmark.generate)
        except MissingInputError:
            continue  # its file is not there, which `_check_files` has said
        except UsageError as error:
            where = f"benchmarks.{cell.resolution.axes['benchmark']}"
            hint = f"; {error.hint}" if error.hint else ""
            problems.add(where, f"{error.message}{hint}")


def _check_files(document: Document, problems: Problems) -> None:
    for name, benchmark in document.benchmarks.items():
        named = {f"files.{split}": file for split, file in benchmark.files.items()}
        if benchmark.difficulty is not None:
            named["difficulty"] = benchmark.difficulty
        for key, file in named.items():
            try:
                data_files(Path(file).expanduser())
            except MissingInputError as error:
                what = f"{error.message} (seen from {Path.cwd()}); {error.hint}"
                problems.add(f"benchmarks.{name}.{key}", what)


def _blocks(document: Document, problems: Problems) -> list[Block]:
    found = [read_block(raw, n, problems) for n, raw in enumerate(document.stage)]
    blocks = [block for block in found if block is not None]
    for name, times in Counter(b.name for b in blocks).items():
        if times > 1:
            problems.add(f"stage.{name}.name", f"stands {times} times; names are unique")
        if name == "questions":
            problems.add("stage.questions.name", "`questions` is the stage that mbt makes itself")
    return blocks


def _expanded(document: Document, blocks: Sequence[Block], problems: Problems) -> Meeting:
    order = [raw["name"] for raw in document.stage if isinstance(raw.get("name"), str)]
    axes = Axes(document, problems, blocks)
    circles = _circles(blocks, problems)
    broken = set(order) - {block.name for block in blocks}
    meeting = Meeting(axes, problems, order, circles, broken)
    expansion = Expansion(axes, problems, meeting)
    for block in blocks:
        expansion.add(block)
    return meeting


def _circles(blocks: Sequence[Block], problems: Problems) -> set[str]:
    """Names of stages that read each other in a circle; each circle is one problem."""
    reads = {b.name: sorted(_stages_read(b)) for b in blocks}
    in_circle: set[str] = set()
    for start in reads:
        trail = _trail_back(start, reads)
        if len(trail) > 1 and not in_circle & set(trail):
            in_circle |= set(trail)
            circle = " -> ".join(f"`{n}`" for n in (*trail, start))
            problems.add(f"stage.{start}", f"stages read each other in a circle: {circle}")
    return in_circle


def _trail_back(start: str, reads: Mapping[str, Sequence[str]]) -> list[str]:
    """A path of stages from `start` that leads back to it; empty when there is none."""
    trails = [[start]]
    seen = {start}
    while trails:
        trail = trails.pop()
        for name in reads.get(trail[-1], ()):
            if name == start:
                return trail
            if name not in seen:
                seen.add(name)
                trails.append([*trail, name])
    return []


def _stages_read(block: Block) -> set[str]:
    names: set[str] = set()
    for _, fields in block.variants():
        for name in block.kind.inputs:
            written = fields.get(name)
            table = written if isinstance(written, dict) else {"stage": written}
            stages = table.get("stage") or ()
            names |= {stages} if isinstance(stages, str) else set(stages)
    return names
