"""How each model of a manifest is served, as a table for people."""

from collections.abc import Sequence
from pathlib import Path

import orjson
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mbt_cli.commands.opening import open_manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.served import ServedModel, served_models


def served_view(path: Path) -> RenderableType:
    """One table a model of a manifest: key, value, and the file or table that says it."""
    return Group(*(_table(model) for model in _models(path)))


def served_json(path: Path) -> str:
    """One JSON object: model to its backend's kind and flags, each with its value and origin."""
    told = {
        model.name: {
            "kind": model.kind,
            "flags": {
                key: {"value": value, "from": origin}
                for key, (value, origin) in model.flags.items()
            },
        }
        for model in _models(path)
    }
    return orjson.dumps(told).decode()


def _models(path: Path) -> Sequence[ServedModel]:
    manifest, machine = open_manifest(path, None, None)
    presets = PresetFolders.usual(extra=machine.presets, config=machine.config)
    return served_models(manifest, presets)


def _table(model: ServedModel) -> RenderableType:
    table = Table(title=Text(f"{model.name} ({model.kind})"), title_justify="left")
    for head in ("key", "value", "from"):
        table.add_column(head, overflow="fold")
    for key, (value, origin) in model.flags.items():
        said = value if isinstance(value, str) else orjson.dumps(value).decode()
        table.add_row(Text(key), Text(said), Text(origin))
    return table
