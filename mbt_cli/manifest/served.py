"""How each model of a manifest is served: every flag, and which file or table says it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mbt_cli.core.chat import Json
from mbt_cli.core.serve_flags import merged_flags
from mbt_cli.manifest.document import ModelTable
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.models import Models
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.toml_text import read_toml


@dataclass(frozen=True)
class ServedModel:
    """One model of a manifest.

    Args:
        name: Its name in the manifest.
        kind: The backend's kind.
        flags: Key, as in `serve.max_model_len`, to its value and where that comes from.
    """

    name: str
    kind: str
    flags: Mapping[str, tuple[Json, str]]


def served_models(manifest: Manifest, presets: PresetFolders) -> Sequence[ServedModel]:
    """Every model of a manifest with what its server is started with."""
    models = Models(manifest.document, presets, Problems())
    found = []
    for name, table in manifest.document.models.items():
        backend = models.backend(name)
        if backend is not None:
            layers = {"mbt": {f"serve.{key}": v for key, v in backend.own_flags.items()}}
            layers |= _preset_layer(table, presets)
            layers[f"models.{name}"] = _flat(table.model_dump(exclude_unset=True))
            found.append(ServedModel(name, backend.kind, merged_flags(layers)))
    return found


def _preset_layer(table: ModelTable, presets: PresetFolders) -> dict[str, dict[str, Json]]:
    path = presets.find("models", table.preset) if table.preset else None
    return {} if path is None else {f"preset {path.stem}": _flat(read_toml(path))}


def _flat(table: Mapping[str, Any]) -> dict[str, Json]:
    """The keys of the tables that say how a server is started."""
    return {
        f"{part}.{key}": value
        for part in ("backend", "serve", "place")
        for key, value in (table.get(part) or {}).items()
    }
