"""LoRAs on vLLM: what identifies them, and which running server can take one."""

import json

import pytest

from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.errors import UsageError
from mbt_cli.manifest.load import load_manifest

MANIFEST = """
[study]
name = "adapters"

[sampling.plain]
temperature = 0
max_tokens = 8

[models.tuned]
backend = {{ kind = "vllm", model = "Qwen/Qwen3-0.6B" }}
sampling = "plain"
adapter = "{adapter}"

[benchmarks.tiny]
kind = "tinyhop"

[[stage]]
kind = "rollout"
matrix = {{ benchmark = "tiny", split = "validation", model = "tuned" }}
prompt = "answer"
"""


def write_adapter(folder, rank=16, base="Qwen/Qwen3-0.6B", **more):
    folder.mkdir(parents=True)
    settings = {"r": rank, "base_model_name_or_path": base, **more}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(str(rank).encode())
    return folder


@pytest.fixture
def backend_of(tmp_path, presets):
    def made(adapter):
        path = tmp_path / "study.toml"
        path.write_text(MANIFEST.format(adapter=adapter))
        cells = load_manifest(path, presets=presets).cells.values()
        (cell,) = [cell for cell in cells if cell.kind == "rollout"]
        return cell.resolution.models["model"].backend

    return made


def test_an_adapter_is_known_by_its_content_and_not_by_its_place(backend_of, tmp_path):
    write_adapter(tmp_path / "one")
    write_adapter(tmp_path / "moved/one")
    write_adapter(tmp_path / "other", rank=8)

    one, moved, other = map(backend_of, ("one", "moved/one", "other"))

    assert one.identity() == moved.identity() != other.identity()
    assert one.spec() == moved.spec() != other.spec()
    plain = VLLMBackend(model="Qwen/Qwen3-0.6B")
    assert plain.identity() != one.identity()
    assert "adapter_sha256" not in plain.spec()
    assert backend_of("owner/lora").identity()["adapter"] == "owner/lora"


def test_the_server_reserves_the_least_rank_that_holds_the_adapter(tmp_path):
    folder = write_adapter(tmp_path / "one", rank=12, rank_pattern={"q_proj": 24})
    flags = VLLMBackend(model="Qwen/Qwen3-0.6B", adapter=str(folder)).flags()

    assert "--enable-lora" in flags
    assert flags[flags.index("--max-lora-rank") + 1] == "32"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "neither a folder nor a name on the hub"),
        ("empty", "has no adapter_config.json"),
    ],
)
def test_what_is_no_adapter_is_refused(backend_of, tmp_path, name, words):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=words):
        backend_of(name)


@pytest.mark.parametrize(
    ("base", "asked", "is_adapter"),
    [
        ("Qwen/Qwen3-0.6B", True, True),
        ("Qwen/Qwen3-0.6B", False, False),
        ("Qwen/Qwen3-4B", True, False),
    ],
    ids=["asked", "unasked", "of another model"],
)
def test_the_lora_of_a_training_is_served_on_its_own_model(tmp_path, base, asked, is_adapter):
    adapter = write_adapter(tmp_path / "files/adapter", base=base)
    place = {"serve_adapters": asked}
    served = VLLMBackend(model="Qwen/Qwen3-0.6B", place=place).serving(
        str(tmp_path / "files/checkpoint"), "ab" * 32
    )

    assert served.identity()["weights"] == "ab" * 32  # the same requests either way
    assert (served.adapter == str(adapter)) is is_adapter
    assert (served.model == "Qwen/Qwen3-0.6B") is is_adapter
