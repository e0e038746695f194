"""What completion offers for a manifest: read as `mbt check` reads it, once after each edit."""

import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from mbt_cli.cli.completion import Hints
from mbt_cli.core.model_settings import OF_STUDY, RunSettings, Sampling
from mbt_cli.errors import MbtError
from mbt_cli.manifest.expand import HUB
from mbt_cli.manifest.load import Manifest, load_manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.schema import ModelTable, StageBlock, StudyTable
from mbt_cli.manifest.toml import Tree, apply_override, read_manifest_tree, read_toml, stage_name
from mbt_cli.settings import Machine
from mbt_cli.stages.kinds import STAGES
from mbt_cli.stages.report import ReportStage
from mbt_cli.store.objects import ObjectCache

_FIXED = ("kind", "name", "matrix", "variants", "exclude", "where")
_LONGEST_VALUE = 60


def hints_for(path: Path, presets: PresetFolders) -> Hints | None:
    """Everything that can be completed, or None while the manifest is wrong.

    Args:
        path: The manifest.
        presets: Folders with presets.
    """
    try:
        nothing_fetched = ObjectCache(Machine().objects, offline=True)
        manifest = load_manifest(path, presets=presets, objects=nothing_fetched)
        files = list(_files(path))
    except MbtError:
        return None  # in the middle of an edit; `mbt check` reports the problems
    stages = _stages(manifest.tree)
    return Hints(
        cells=list(manifest.cells),
        keys=set_keys(manifest),
        tables=list(dict.fromkeys(_tables(manifest))),
        models=list(manifest.document.models),
        benchmarks=list(manifest.document.benchmarks),
        files=files,
        sources=list(dict.fromkeys(_sources(stages))),
    )


def stage_names(path: Path) -> Sequence[str]:
    """Names of the stages of a manifest that may be wrong otherwise."""
    try:
        stages = _stages(read_manifest_tree(path, ()))
    except MbtError:
        return ()
    return [str(name) for stage in stages if (name := stage_name(stage)) is not None]


def set_keys(manifest: Manifest) -> Mapping[str, Sequence[str]]:
    """Keys that `--set` takes, each with its known values, the current one first.

    Keys that need quotes (names with a dot) are left out.
    """
    keys: dict[str, list[str]] = {}
    for place, model in _tables_of(manifest):
        for name, info in model.model_fields.items():
            if name not in (*_FIXED, *(OF_STUDY if place.endswith(".run") else ())):
                default = [] if info.is_required() else [info.get_default()]
                values = [*default, *_choices(info.annotation)]
                shown = (text for value in values for text in _shown(value))
                keys[f"{place}.{name}"] = list(dict.fromkeys(shown))
    for key, value in _leaves(manifest.tree):
        keys[key] = list(dict.fromkeys([*_shown(value), *keys.get(key, ())]))
    return {k: v for k, v in sorted(keys.items()) if _takes(k)}


def _tables_of(manifest: Manifest) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every place of the manifest that a class describes."""
    document = manifest.document
    yield "study", StudyTable
    yield "run", RunSettings
    for name in document.sampling:
        yield f"sampling.{name}", Sampling
    for name in document.models:
        yield f"models.{name}", ModelTable
        yield f"models.{name}.run", RunSettings
    for family in ("benchmarks", "judges", "programs"):
        for name, plugin in getattr(document, family).items():
            yield f"{family}.{name}", type(plugin)
    for stage in _stages(manifest.tree):
        yield f"stage.{stage_name(stage)}", StageBlock
        yield f"stage.{stage_name(stage)}", STAGES[stage["kind"]]


def _leaves(tree: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in the manifest."""
    for key, value in tree.items():
        if place == "" and key == "stage":
            for stage in _stages(tree):
                own = {k: v for k, v in stage.items() if k not in ("kind", "name")}
                yield from _leaves(own, f"stage.{stage_name(stage)}.")
        elif isinstance(value, Mapping):
            yield from _leaves(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _choices(annotation: object) -> list[object]:
    """Values that a type lists."""
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if isinstance(annotation, types.UnionType):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []


def _shown(value: object) -> list[str]:
    """A value as it is typed after `KEY=`; None if it does not fit into a shell word."""
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, str):
        is_word = value and len(value) <= _LONGEST_VALUE and not set(value) & set(" \n'\"$`\\")
        return [value] if is_word and _reads(value) == value else []
    return [repr(value)] if isinstance(value, int | float) else []


def _reads(text: str) -> object:
    tree: Tree = {}
    apply_override(tree, f"k={text}")
    return tree["k"]


def _takes(key: str) -> bool:
    return all(part.replace("-", "").replace("_", "").isalnum() for part in key.split("."))


def _tables(manifest: Manifest) -> Iterator[str]:
    for cell in manifest.cells.values():
        if isinstance(cell.stage, ReportStage):
            yield from (table.kind for table in cell.stage.tables)


def _stages(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    stages = tree.get("stage", ())
    return [stage for stage in stages if isinstance(stage, Mapping)]


def _sources(stages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Sources of optional stages on this disk, with `*` for every axis."""
    for stage in stages:
        if not stage.get("optional", False):
            continue
        for key, value in _leaves(stage):
            name = key.rpartition(".")[2]
            is_source = name in ("source", "from") and isinstance(value, str)
            if is_source and not value.startswith(HUB):
                yield _with_stars(value)


def _with_stars(source: str) -> str:
    head, brace, rest = source.partition("{")
    return f"{head}*{_with_stars(rest.partition('}')[2])}" if brace else source


def _files(path: Path) -> Iterator[str]:
    """The manifest, its plug-ins, and what it extends."""
    yield str(path.resolve())
    study = read_toml(path).get("study", {})
    yield from (str((path.parent / file).resolve()) for file in study.get("plugins", ()))
    if (parent := study.get("extends")) is not None:
        yield from _files(path.parent / str(parent))
