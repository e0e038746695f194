"""Presets of models: by their name, or by that of the model."""

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.toml import read_toml

AUTO = "auto:"
"""How `preset` begins where the name of a model decides."""


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """A preset of a model.

    Args:
        path: Its file.
        table: Its content, with the model's name filled in.
    """

    path: Path
    table: dict[str, Any]


def preset_of(presets: PresetFolders, name: str) -> ModelPreset | None:
    """The preset of a model by what its table says; None if there is none.

    `auto:NAME` is the preset whose `backend.model` is NAME; else the first table in presets/auto/
    whose `names` fit the part of NAME after its last slash. So hosted models are known by how their
    names begin, as `gpt-5` and `google/gemini-3-pro`; everything else is served here.
    """
    if not name.startswith(AUTO):
        path = presets.find("models", name)
        return None if path is None else ModelPreset(path, read_toml(path))
    wanted = name.removeprefix(AUTO)
    last = wanted.rpartition("/")[2]
    paths = [path for own in presets.names("auto") if (path := presets.find("auto", own))]
    tables = {path: read_toml(path) for path in paths}
    # the one for every name comes last
    for own, table in sorted(tables.items(), key=lambda item: "*" in item[1]["names"]):
        names, others = table.pop("names"), table.pop("except", [])
        is_meant = any(fnmatch(last.lower(), one) for one in names)
        if not is_meant or any(fnmatch(last.lower(), one) for one in others):
            continue
        if "*" in names:  # served here: the settings of its card, if a preset has them
            for known in presets.names("models"):
                path = presets.find("models", known)
                found = {} if path is None else read_toml(path)
                model = str(found.get("backend", {}).get("model", ""))
                if path is not None and model.lower() == wanted.lower():
                    return ModelPreset(path, found)
        return ModelPreset(own, _filled(table, {"name": wanted, "last": last}))
    return None


def _filled(table: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
    """A table with `{name}` and `{last}` replaced in its texts."""
    filled: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            filled[key] = _filled(value, words)
        elif isinstance(value, str):
            for word, text in words.items():
                value = value.replace(f"{{{word}}}", text)
            filled[key] = value
        else:
            filled[key] = value
    return filled
