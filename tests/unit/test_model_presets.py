"""Every shipped model preset is whole and asks its server for flags that it has."""

import tomllib
from pathlib import Path

import pytest

from mbt_cli.registry import BACKENDS

FOLDER = Path(__file__).parents[2] / "presets" / "models"
PRESETS = sorted(FOLDER.glob("*.toml"))
STUDY = [
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b-fp8",
    "qwen3.5-0.8b",
    "qwen3.5-2b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
    "qwen3.5-122b-a10b-fp8",
    "qwen3.5-397b-a17b-fp8",
    "qwen3.6-27b",
    "qwen3.6-35b-a3b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "gemma-4-26b-a4b-it",
    "gemma-4-31b-it",
    "llama-4-scout-fp8",
    "nemotron-3-nano-4b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-3-super-120b-a12b-fp8",
    "mistral-small-4",
    "glm-4.7-flash",
    "deepseek-v4-flash",
    "smollm2-135m",
]


def test_there_is_a_preset_for_every_model_of_the_study():
    assert {path.stem for path in PRESETS} >= set(STUDY)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_makes_a_backend(path):
    table = tomllib.loads(path.read_text())
    assert set(table) <= {"backend", "serve", "place", "size", "id", "request", "run", "note"}

    over = {name: table[name] for name in ("serve", "place", "size") if name in table}
    backend = BACKENDS.make({**table["backend"], **over})

    assert backend.identity()
