"""`mbt check`: whether a manifest is right, and the cells that it expands to."""

from collections.abc import Sequence
from pathlib import Path

import orjson
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.doctor_study import notes
from mbt_cli.cli.manifests import open_manifest, warnings_of
from mbt_cli.cli.printing import printer
from mbt_cli.core.addresses import axes_of
from mbt_cli.engine.contamination import contamination
from mbt_cli.engine.plan import UnusedCells, unused_cells
from mbt_cli.engine.states import States
from mbt_cli.errors import UsageError
from mbt_cli.manifest.docs import schema_text
from mbt_cli.manifest.load import Manifest, load_plugins
from mbt_cli.manifest.self_preference import related_judges
from mbt_cli.manifest.shown import unshown_metrics
from mbt_cli.manifest.toml import read_manifest_tree


def print_schema(paths: Sequence[Path]) -> None:
    """Print the JSON Schema of manifests; with the plug-ins of a manifest, if one is given."""
    if paths:
        load_plugins(paths[0], read_manifest_tree(paths[0], ()))
    typer.echo(schema_text())


def check(
    paths: Sequence[Path], overrides: list[str] | None, presets: Path | None, *, as_json: bool
) -> None:
    """Print the stages of each manifest with their cells, and notes on what a run needs.

    Raises:
        UsageError: No manifest is given.
        ManifestError: A manifest is wrong.
    """
    if not paths:
        raise UsageError("no manifest given", hint="mbt check manifests/quickstart.toml")
    for path in paths:
        manifest, machine = open_manifest(path, overrides, presets)
        found = [str(one) for one in contamination(manifest, States(manifest, machine.runs))]
        if as_json:
            typer.echo(checked_json(manifest, found))
        else:
            lines = [
                *warnings_of(manifest),
                *notes(manifest, machine.environment),
                *_self_preferences(manifest),
                *found,
            ]
            printer().print(stage_counts(manifest, lines))


def stage_counts(manifest: Manifest, notes: Sequence[str]) -> RenderableType:
    """Every stage with its kind, axes and number of cells; then notes."""
    table = Table(
        title=f"{manifest.path}: study {manifest.study}, no problems", title_justify="left"
    )
    for column in ("stage", "kind", "cells", "axes"):
        table.add_column(column, justify="right" if column == "cells" else "left")
    for stage, cells in manifest.counts().items():
        of_stage = [c for a, c in manifest.cells.items() if a.partition("/")[0] == stage]
        axes: dict[str, set[str]] = {}
        for cell in of_stage:
            for axis, value in cell.resolution.axes.items():
                axes.setdefault(axis, set()).add(value)
        words = " x ".join(f"{axis} {len(values)}" for axis, values in axes.items())
        table.add_row(stage, of_stage[0].kind, str(cells), words)
    lines = [f"nothing reads {_unused_line(group)}" for group in unused_cells(manifest)]
    for stage in manifest.waiting:
        lines.append(f"{stage} has no cells until a checkpoint that it reads is published")
    if manifest.left_out:
        count = len(manifest.left_out)
        lines.append(f"{count} optional cells are excluded: their source does not exist")
    return Group(table, *(Text(line, style="yellow") for line in (*lines, *notes)))


def _self_preferences(manifest: Manifest) -> list[str]:
    """Judge models that judge replies of their own kind."""
    return [str(pair) for pair in related_judges(manifest.cells, manifest.cells.values())]


def _unused_line(group: UnusedCells) -> str:
    count = f"{len(group.addresses)} of {group.of} cells of {group.stage}"
    return f"{count}: {', '.join(group.apart)}" if group.apart else count


def checked_json(manifest: Manifest, shared: Sequence[str]) -> str:
    """A manifest's stages with their cells and axes, unused cells and contamination, as JSON."""
    stages = []
    for stage, cells in manifest.counts().items():
        of_stage = [c for a, c in manifest.cells.items() if a.partition("/")[0] == stage]
        axes: dict[str, list[str]] = {}
        for cell in of_stage:
            for axis, value in axes_of(cell.address).items():
                values = axes.setdefault(axis, [])
                if value not in values:
                    values.append(value)
        stages.append({"stage": stage, "kind": of_stage[0].kind, "cells": cells, "axes": axes})
    document = {
        "manifest": str(manifest.path),
        "study": manifest.study,
        "stages": stages,
        "unread": [address for group in unused_cells(manifest) for address in group.addresses],
        "left_out": list(manifest.left_out),
        "waiting": list(manifest.waiting),
        "contamination": list(shared),
        "self_preference": _self_preferences(manifest),
        "warnings": [str(problem) for problem in manifest.warnings],
        "unshown_metrics": list(unshown_metrics(manifest.cells)),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
