"""Load a manifest: from its text to checked cells, or to a list of all problems."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from mbt_cli.core.judge_scales import CORRECTNESS
from mbt_cli.core.names import nearest
from mbt_cli.core.secrets import HELD, hold, mask
from mbt_cli.errors import ManifestError, MissingInputError, Problem, UsageError
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.expand import expand, without_missing_sources
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.resolve import Resolver
from mbt_cli.manifest.schema import Document, read_document
from mbt_cli.manifest.self_preference import with_related_judges
from mbt_cli.manifest.toml import manifest_text, read_manifest_tree, with_lines
from mbt_cli.manifest.trained_questions import with_trained_questions
from mbt_cli.plugins import use_study_plugins
from mbt_cli.stages.labels import label_problems
from mbt_cli.stages.score import ScoreStage, missing_judge
from mbt_cli.store.questions import check_split
from mbt_cli.store.records import data_files


@dataclass(frozen=True)
class Manifest:
    """A checked study.

    Args:
        cells: Address to cell, inputs before the cells that read them.
        left_out: Addresses of optional cells whose source does not exist.
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

    def unsaid(self) -> Mapping[str, Any]:
        """Key path to value of what the manifest leaves to mbt and what decides the rows."""
        study = self.document.study
        written = self.tree.get("study", {})
        found: dict[str, Any] = {
            f"study.{key}": getattr(study, key) for key in _OF_STUDY if key not in written
        }
        for raw, block in zip(self.tree.get("stage", ()), self.document.blocks, strict=True):
            where, matrix = f"stage.{block.name}", block.envelope.matrix
            if "name" not in raw:
                found[f"{where}.name"] = block.name
            if "split" in matrix and "split" not in raw.get("matrix", {}):
                found[f"{where}.matrix.split"] = matrix["split"]
            found |= {f"{where}.{k}": v for k, v in block.fields.items() if k not in raw}
            samples = block.kind.model_fields.get("samples")
            if samples is not None and "samples" not in {**block.fields, **matrix}:
                found[f"{where}.samples"] = samples.default
        return found


_OF_STUDY = ("seed", "max_failed_share")


def load_manifest(path: Path, *, presets: PresetFolders, overrides: Sequence[str] = ()) -> Manifest:
    """Read, merge, check and expand a manifest.

    Its stages are expanded once its tables are right: names in a wrong table would only cause
    more problems.

    Raises:
        ManifestError: It is wrong; holds every problem found.
        UsageError: The file does not exist, or an override is not KEY=VALUE.
    """
    try:
        return _loaded(path, presets, overrides)
    except ManifestError as error:
        raise with_lines(error, overrides) from None


def _loaded(path: Path, presets: PresetFolders, overrides: Sequence[str]) -> Manifest:
    tree = _with_data_paths(read_manifest_tree(path, overrides), path.parent)
    _check_head(path, tree)
    problems = Problems()

    def stop_if_wrong() -> None:
        if problems:
            raise ManifestError(str(path), problems.all(overrides))

    document = read_document(tree, problems)
    _check_files(document, problems)
    _check_columns(document, problems)
    text = manifest_text(path, overrides)
    resolver = Resolver(document, presets, problems, path=path, text=text)
    for name in document.models:
        if (backend := resolver.backend(name)) is not None:
            hold(os.environ, named=backend.secret_variables())
    _check_secrets(text, problems)
    stop_if_wrong()
    drafts = expand(document, problems)
    with_cells = {draft.stage for draft in drafts}
    drafts, left_out = without_missing_sources(drafts)
    cells = [cell for draft in drafts if (cell := resolver.cell(draft)) is not None]
    for block in document.blocks:
        if block.name not in with_cells:
            resolver.check_without_cells(block)
    _check_splits(cells, problems)
    by_address = {cell.address: cell for cell in cells}
    if not problems:
        _check_judges(by_address, problems)
    _check_labels(by_address, problems)
    stop_if_wrong()
    whole = with_trained_questions(with_related_judges(by_address))
    return Manifest(path, document, whole, left_out, tree)


def _with_data_paths(tree: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The tables with data files as paths from here, where the manifest's folder has them.

    Others stay as written: they are relative to here.
    """
    if folder.resolve() == Path.cwd() or not isinstance(tree.get("benchmarks"), dict):
        return tree

    def found(file: Any) -> Any:
        if not isinstance(file, str) or Path(file).expanduser().is_absolute():
            return file
        try:
            data_files(folder / file)
        except MissingInputError:
            return file
        return str(folder / file)

    made: dict[str, Any] = {}
    for name, table in tree["benchmarks"].items():
        if isinstance(table, dict):
            table = dict(table)
            if isinstance(table.get("files"), dict):
                table["files"] = {split: found(file) for split, file in table["files"].items()}
            if "difficulty" in table:
                table["difficulty"] = found(table["difficulty"])
        made[name] = table
    return {**tree, "benchmarks": made}


def _check_head(path: Path, tree: Mapping[str, Any]) -> None:
    """Check the required version of mbt and load the plug-ins, before any table is read."""
    if not tree:
        what = "is empty; a manifest starts with `[study]`"
        raise ManifestError(str(path), [Problem("file", what)], hint="mbt help manifest")
    study = tree.get("study")
    if not isinstance(study, dict):
        study = {}
    needed, own = study.get("mbt"), metadata.version("mbt-cli")
    if isinstance(needed, str) and _numbers(needed) > _numbers(own):
        what = f"`{needed}`: needs mbt {needed} or newer; this is mbt {own}"
        hint = 'python -m pip install --upgrade "mbt-cli"'
        raise ManifestError(str(path), [Problem("study.mbt", what)], hint=hint)
    load_plugins(path, tree)


def load_plugins(path: Path, tree: Mapping[str, Any]) -> None:
    """Load the plug-ins of a study's own files.

    Raises:
        ManifestError: A file cannot be used.
    """
    study = tree.get("study")
    written = study.get("plugins") if isinstance(study, dict) else None
    files = [file for file in written if isinstance(file, str)] if isinstance(written, list) else []
    wrong = use_study_plugins([Path(file).expanduser() for file in files])
    found = [
        Problem(f"study.plugins.{number}", f"`{file}`: {wrong[Path(file).expanduser()]}")
        for number, file in enumerate(files)
        if Path(file).expanduser() in wrong
    ]
    if found:
        raise ManifestError(str(path), found, hint="mbt help extend")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _check_secrets(text: str, problems: Problems) -> None:
    """Secrets written into the manifest, which artifacts, jobs and reports quote."""
    for line in text.splitlines():
        if (name := HELD.name_in(line)) is not None:
            what = (
                f"`{mask(line.strip())}` holds the value of `{name}`: remove it, and name the "
                "variable in the model's backend, with `api_key_env` or `headers_env`"
            )
            problems.add("file", what)


def _check_files(document: Document, problems: Problems) -> None:
    """The local files of benchmarks."""
    for name, benchmark in document.benchmarks.items():
        files = {f"files.{split}": file for split, file in benchmark.files.items()}
        if benchmark.difficulty is not None:
            files["difficulty"] = benchmark.difficulty
        for key, file in files.items():
            try:
                data_files(Path(file).expanduser())
            except MissingInputError as error:
                what = f"{error.message} (relative to {Path.cwd()}); {error.hint}"
                problems.add(f"benchmarks.{name}.{key}", what)


def _check_columns(document: Document, problems: Problems) -> None:
    """Fields in `columns` that the layout does not have: they would be left out without a word."""
    for name, benchmark in document.benchmarks.items():
        for field_name in benchmark.columns:
            if benchmark.reads and field_name not in benchmark.reads:
                near = nearest(field_name, sorted(benchmark.reads))
                what = f"`{benchmark.kind}` has no field `{field_name}`; {near}"
                problems.add(f"benchmarks.{name}.columns.{field_name}", what)


def _check_splits(cells: Sequence[Cell], problems: Problems) -> None:
    """Splits that a benchmark does not have, as far as that is known without reading data."""
    for cell in cells:
        benchmark, split = cell.resolution.benchmark, cell.resolution.axes.get("split")
        if cell.kind != "questions" or benchmark is None or split is None:
            continue
        try:
            check_split(benchmark, split, generate=benchmark.generate)
        except MissingInputError:
            continue  # a file that `_check_files` reports
        except UsageError as error:
            where = f"benchmarks.{cell.resolution.axes['benchmark']}"
            hint = f"; {error.hint}" if error.hint else ""
            problems.add(where, f"{error.message}{hint}")


def _check_judges(cells: Mapping[str, Cell], problems: Problems) -> None:
    """Metrics of score stages whose judge has judged none of the stage's rollouts."""
    judged: dict[str, set[str]] = {}
    stages: dict[str, ScoreStage] = {}
    for cell in cells.values():
        if isinstance(cell.stage, ScoreStage) and cell.stage.verdicts is not None:
            stages[cell.stage.name] = cell.stage
            judges = [
                cells[address].resolution.judge
                for address in cell.resolution.inputs.get("verdicts", ())
                if address in cells
            ]
            judged.setdefault(cell.stage.name, set()).update(j.quantity for j in judges if j)
    for name, stage in stages.items():
        for number, metric in enumerate(stage.metrics):
            if (what := missing_judge(metric, judged[name])) is not None:
                problems.add(f"stage.{name}.metrics.{number}", f"{what}: add it to a judge stage")


def _check_labels(cells: Mapping[str, Cell], problems: Problems) -> None:
    """Human labels of score stages: their file, and whether a label belongs to one rollout."""
    labelled: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells.values():
        if isinstance(cell.stage, ScoreStage) and cell.stage.human is not None:
            labelled.setdefault((cell.stage.name, cell.stage.human), []).append(cell)
    known: dict[str, set[str]] = {}
    for cell in cells.values() if labelled else ():
        for axis, value in cell.resolution.axes.items():
            known.setdefault(axis, set()).add(value)
    for (name, human), scored in labelled.items():
        read = {a for cell in scored for a in cell.resolution.inputs.get("verdicts", ())}
        judges = [cells[address].resolution.judge for address in sorted(read) if address in cells]
        scales = [judge.scale for judge in judges if judge and judge.quantity == CORRECTNESS]
        axes = [cell.resolution.axes for cell in scored]
        for what in label_problems(human, axes, list(dict.fromkeys(scales)), known):
            problems.add(f"stage.{name}.human", what)
