"""Several LoRAs of one model, one after the other on one vLLM."""

import json
import subprocess

import polars as pl
import pytest

from tests.integration.vllm.test_real_servers import BESIDE, need

STUDY = """
[study]
name = "adapters"
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 12
seedable = false

{models}

[benchmarks.tiny]
kind = "tinyhop"
limit = 2

[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = "tiny", split = "validation", model = ["none", "one", "two"] }}
prompt = "answer"
"""
MODEL = """
[models.{name}]
backend = {{ kind = "vllm", model = "{folder}" }}
sampling = "plain"
{adapter}
[models.{name}.serve]
max_model_len = 1024
# without AVX-512, the bfloat16 kernels of a processor are a hundred times slower
dtype = "float32"
[models.{name}.place]
environment = {{ VLLM_CPU_KVCACHE_SPACE = "1", HF_HUB_OFFLINE = "1" }}
flags = {{ enforce_eager = true }}
"""


def write_adapter(folder, base, scale, rank=4):
    """A LoRA with random weights of this size."""
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    config = json.loads((base / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    sizes = {"q_proj": width, "v_proj": width // heads * config["num_key_value_heads"]}
    draw = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in sizes.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (rank, width)), ("B", (size, rank))):
                random = torch.randn(shape, generator=draw) * scale
                tensors[f"{place}.lora_{part}.weight"] = random
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": rank}
    settings |= {"lora_alpha": 8, "target_modules": list(sizes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def test_one_server_answers_for_all_adapters_of_a_model(hub_layout, tmp_path):
    need("vllm")
    write_adapter(tmp_path / "one", hub_layout, 0.0)
    write_adapter(tmp_path / "two", hub_layout, 0.2)
    models = [
        MODEL.format(name=name, folder=hub_layout, adapter=f'adapter = "{name}"\n' * has)
        for name, has in (("none", False), ("one", True), ("two", True))
    ]
    (tmp_path / "study.toml").write_text(STUDY.format(models="".join(models)))

    ran = subprocess.run(
        [str(BESIDE / "mbt"), "run", "study.toml"], cwd=tmp_path, capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stderr
    cells = tmp_path / "runs/adapters/base/benchmark=tiny/split=validation"
    replies = {
        name: pl.read_parquet(next((cells / f"model={name}").rglob("rows.parquet")))["reply"]
        for name in ("none", "one", "two")
    }
    # an adapter of zeros changes nothing, one of large numbers everything
    assert replies["one"].to_list() == replies["none"].to_list()
    assert replies["two"].to_list() != replies["one"].to_list()
    # the model itself has its own server, the adapters share one
    started = [path.relative_to(cells).parts[0] for path in cells.rglob("*.server.log")]
    assert sorted(started) == ["model=none", "model=one"]
