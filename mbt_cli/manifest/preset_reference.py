"""Which presets are there, as Markdown: each with the first sentence of its own comment."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mbt_cli.manifest.presets import PresetFolders, shipped
from mbt_cli.manifest.toml_text import read_toml

FAMILIES: Mapping[str, str] = {
    "models": 'models, named by `preset = "NAME"` in `[models.X]`',
    "train": 'training methods, named by `preset = "NAME"` on a `train` stage',
    "accelerate": "processes of a training, named by `launch.accelerate`",
    "sources": "published data sets, named by `source = \"hub:ORG/NAME\"` on a stage",
    "slurm": "clusters, named by `mbt submit --slurm --preset NAME`",
}  # fmt: skip


def preset_reference(folders: PresetFolders) -> str:
    """One section a family, one line a preset; `yours` marks those that mbt does not ship."""
    sections = [
        f"Those that mbt ships are files in `{shipped('presets')}`: copy one to begin with."
    ]
    for family, what in FAMILIES.items():
        lines = [_line(family, name, folders) for name in folders.names(family)]
        sections.append("\n".join([f"## `{family}`: {what}", "", *lines]))
    return "\n\n".join(sections)


def _line(family: str, name: str, folders: PresetFolders) -> str:
    path = folders.find(family, name)
    assert path is not None
    is_ours = path.resolve().is_relative_to(shipped("presets").resolve())
    whose = "" if is_ours else f" (yours: {path})"
    sizes = ", ".join(_sizes(read_toml(path))) if family == "models" else ""
    return f"- `{name}`: {'; '.join(p for p in (_first_sentence(path), sizes) if p)}{whose}"


def _first_sentence(path: Path) -> str:
    r"""The first sentence of the comment that a file opens with, without its period."""
    found = re.match(r"(?:#[^\n]*\n)*", path.read_text(encoding="utf-8"))
    words = " ".join(line.lstrip("# ") for line in (found[0] if found else "").splitlines())
    return re.split(r"(?<=[^.])\.(?:\s|$)|:\s", words, maxsplit=1)[0].strip()


def _sizes(preset: Mapping[str, Any]) -> Iterator[str]:
    """How many GPUs it takes and how long its context is, where it says so."""
    if gpus := preset.get("place", {}).get("tensor_parallel_size"):
        yield f"{gpus} GPU{'s' if gpus > 1 else ''}"
    context = preset.get("serve", {}).get("max_model_len") or preset.get("backend", {}).get(
        "context"
    )
    if context:
        yield f"context {context:,}"
