"""`preset = "auto:NAME"`: hosted or served here, by the name."""

import pytest

from mbt_cli.errors import UsageError
from tests.conftest import SMALL_STUDY

CANNED = SMALL_STUDY[SMALL_STUDY.index("backend = ") :].partition("\n")[0]


def backend_of(load, name):
    manifest = load(SMALL_STUDY.replace(CANNED, f'preset = "auto:{name}"', 1))
    (cell, *_) = [cell for cell in manifest.cells.values() if cell.kind == "rollout"]
    model = cell.resolution.models["model"]
    return model.backend, model.id


@pytest.mark.parametrize(
    ("name", "host", "id"),
    [
        ("gpt-5", "api.openai.com", "gpt-5"),
        ("google/gemini-3-pro", "googleapis.com", "gemini-3-pro"),
        ("claude-opus", "api.anthropic.com", "claude-opus"),
        ("grok-41-fast", "api.x.ai", "grok-41-fast"),
        ("GPT-5-mini", "api.openai.com", "GPT-5-mini"),
    ],
)
def test_hosted_models_are_known_by_how_their_names_begin(load, name, host, id):
    backend, model = backend_of(load, name)

    assert backend.kind == "openai"
    assert host in backend.base_url
    assert backend.api_key_env.endswith("_API_KEY")
    assert model == id


@pytest.mark.parametrize(
    "name",
    [
        "openai/gpt-oss-120b",
        "openai-community/gpt2",
        "Qwen/Qwen2.5-72B-Instruct",
        "me/my-claude",
        "./folder",
    ],
)
def test_everything_else_is_served_here(load, name):
    backend, _ = backend_of(load, name)

    assert backend.kind == "vllm"
    assert backend.model == name


def test_weights_with_a_preset_have_its_settings(load):
    backend, _ = backend_of(load, "qwen/qwen3-8b")

    assert backend.model == "Qwen/Qwen3-8B"
    assert backend.serve["reasoning_parser"] == "qwen3"


def test_a_host_of_ones_own_is_a_file(load, tmp_path, presets):
    folder = tmp_path / "presets/auto"
    folder.mkdir(parents=True)
    (folder / "house.toml").write_text(
        'names = ["house*"]\n[backend]\nkind = "openai"\nbase_url = "http://house/v1"\n'
    )
    from mbt_cli.manifest.model_presets import preset_of
    from mbt_cli.manifest.presets import PresetFolders

    both = PresetFolders((tmp_path / "presets", *presets.folders))

    assert preset_of(both, "auto:our/house-3b").table["backend"]["base_url"] == "http://house/v1"
    assert preset_of(both, "auto:gpt-5").path.stem == "gpt"


@pytest.mark.parametrize("name", ["", " ", "a b", "-x"])
def test_a_name_that_is_none_is_refused(load, name):
    with pytest.raises(UsageError, match="preset"):
        backend_of(load, name)
