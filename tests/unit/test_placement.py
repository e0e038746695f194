"""On how many GPUs a model is served, and which GPUs are at hand."""

import json
import struct
import tomllib
from pathlib import Path

import pytest

from mbt_cli.backends.model_sizes import folder_size, model_size, size_from_config
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.core.gpus import GPUs, gpus_at_hand
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.placement import ModelSize, Serving, choose_placement
from mbt_cli.errors import UsageError
from mbt_cli.registry import BACKENDS

PRESETS = Path(__file__).parents[2] / "presets" / "models"
GOLDEN = Path(__file__).parent / "goldens_placement" / "presets.txt"
HARDWARE = {
    "1x24": GPUs(1, 24),
    "1x80": GPUs(1, 80),
    "8x80": GPUs(8, 80),
    "2x8x80": GPUs(8, 80, nodes=2),
    "8x141": GPUs(8, 141),
}
SERVING = Serving("org/model", 8_192)
SMALL = ModelSize(weights_gb=16, attention_heads=32, kv_heads=8, kv_bytes_per_token=147_456)


def preset(name, **place):
    table = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    tables = {key: table[key] for key in ("serve", "size") if key in table}
    own = {**table.get("place", {}), **place}
    return BACKENDS.make({**table["backend"], **tables, **({"place": own} if own else {})})


def chosen(backend, gpus):
    return backend.placed(gpus, {}, ask_hub=False)[1]


# the table


def test_the_placement_of_every_preset_on_usual_machines_is_the_recorded_one():
    head = "free memory on each GPU in GiB; T: tensor parallel, R: replicas, N: nodes\n\n"
    lines = [f"{'preset':<36}" + "".join(f"{name:<18}" for name in HARDWARE).rstrip()]
    for path in sorted(PRESETS.glob("*.toml")):
        cells = [cell(preset(path.stem), gpus) for gpus in HARDWARE.values()]
        lines.append((f"{path.stem:<36}" + "".join(f"{text:<18}" for text in cells)).rstrip())

    assert len(lines) > 30
    assert head + "\n".join(lines) + "\n" == GOLDEN.read_text()


def cell(backend, gpus):
    try:
        found = chosen(backend, gpus)
    except UsageError:
        return "does not fit"
    if found is None:
        return "no GPU"
    nodes = f" N{found.nodes}" if found.nodes > 1 else ""
    return f"T{found.tensor_parallel} R{found.replicas}{nodes} {found.cache_gib:.1f}"


# the arithmetic


def test_the_smallest_number_of_gpus_that_has_room_for_the_cache_is_chosen():
    serving = Serving("org/model", context=32_768)

    one = choose_placement(SMALL, serving, GPUs(8, 80))
    narrow = choose_placement(SMALL, serving, GPUs(8, 24))

    assert (one.tensor_parallel, one.replicas) == (1, 8)
    assert narrow.tensor_parallel > 1
    assert narrow.tensor_parallel * narrow.replicas == 8


def test_the_shares_of_a_gpu_add_up():
    found = choose_placement(SMALL, Serving("org/model", 32_768), GPUs(1, 80))

    taken = found.weights_gib + found.overhead_gib + found.cache_gib
    assert taken == pytest.approx(80 * 0.9)
    assert found.weights_gib == pytest.approx(16e9 / 2**30)


def test_tensor_parallel_divides_heads_and_quantized_blocks():
    heads = SMALL.model_copy(update={"attention_heads": 20, "kv_heads": 1, "weights_gb": 150})
    blocks = SMALL.model_copy(update={"weight_blocks": 12, "weights_gb": 230})
    serving = Serving("org/model", 8_192)

    assert choose_placement(heads, serving, GPUs(8, 80)).tensor_parallel == 4
    assert choose_placement(blocks, serving, GPUs(8, 80)).tensor_parallel == 4


@pytest.mark.parametrize(
    ("gpus", "weights_gb", "stages", "nodes"),
    [(GPUs(8, 80), 400, 2, 1), (GPUs(8, 80, nodes=2), 800, 4, 2), (GPUs(8, 40), 230, 2, 1)],
)
def test_what_tensor_parallel_cannot_divide_further_is_divided_into_stages(
    gpus, weights_gb, stages, nodes
):
    blocks = SMALL.model_copy(update={"weight_blocks": 12, "weights_gb": weights_gb})

    found = choose_placement(blocks, SERVING, gpus)

    assert (found.tensor_parallel, found.pipeline_parallel) == (4, stages)
    assert (found.nodes, found.replicas) == (nodes, 1)
    assert f"tensor parallel 4 x {stages} stages" in str(found)
    with pytest.raises(UsageError, match=f"divided over {4 * stages}, "):
        choose_placement(blocks.model_copy(update={"weights_gb": 1_500}), SERVING, gpus)


def test_the_cache_of_latent_attention_is_not_divided():
    latent = SMALL.model_copy(update={"kv_heads": 1, "weights_gb": 100})
    serving = Serving("org/model", 32_768)

    shared = choose_placement(SMALL.model_copy(update={"weights_gb": 100}), serving, GPUs(8, 80))
    copied = choose_placement(latent, serving, GPUs(8, 80))

    assert shared.tensor_parallel == copied.tensor_parallel == 2
    assert shared.requests == pytest.approx(2 * copied.requests)


def test_a_model_that_one_node_cannot_hold_is_divided_over_nodes():
    large = SMALL.model_copy(update={"weights_gb": 800})

    found = choose_placement(large, Serving("org/model", 32_768), GPUs(8, 80, nodes=2))

    assert (found.tensor_parallel, found.pipeline_parallel, found.replicas) == (8, 2, 1)


def test_a_model_that_cannot_fit_is_refused_with_the_arithmetic():
    with pytest.raises(UsageError) as caught:
        chosen(preset("qwen3-32b"), GPUs(1, 24))

    words = caught.value.message
    assert "`Qwen/Qwen3-32B` does not fit on 1 GPU of 24 GiB" in words
    assert "61.0 GiB weights" in words
    assert "24 x 0.9 - 2.0 for vLLM = 19.6 GiB" in words
    assert caught.value.exit_code == 2


def test_gpus_of_unknown_memory_count_as_80_gib_and_refuse_nothing():
    known = chosen(preset("qwen3-32b"), GPUs(4, 80))
    unknown = chosen(preset("qwen3-32b"), GPUs(4, None))
    large = chosen(preset("qwen3.5-397b-a17b-fp8"), GPUs(2, None))

    assert (known.tensor_parallel, known.replicas) == (unknown.tensor_parallel, unknown.replicas)
    assert "unknown" in str(unknown)
    assert large.tensor_parallel == 2


def test_an_eight_bit_cache_and_a_shorter_context_take_less():
    wide = preset("qwen3-32b", gpu_memory_utilization=0.9)
    wide = wide.model_copy(update={"serve": {**wide.serve, "max_model_len": 32_768}})
    short = wide.model_copy(update={"serve": {**wide.serve, "max_model_len": 8_192}})
    small = wide.model_copy(update={"serve": {**wide.serve, "kv_cache_dtype": "fp8"}})

    requests = [chosen(each, GPUs(2, 80)).requests for each in (wide, small, short)]

    assert requests[1] == pytest.approx(2 * requests[0])
    assert requests[2] == pytest.approx(4 * requests[0])


# the backend


def test_a_placement_that_is_said_is_kept():
    said = preset("qwen3-8b", tensor_parallel_size=4)
    flags = preset("qwen3-8b", flags={"data_parallel_size": 2})

    for backend in (said, flags):
        assert backend.placed(GPUs(8, 80), {}, ask_hub=False) == (backend, None)


def test_the_flags_have_the_chosen_placement():
    dense, _ = preset("qwen3-32b").placed(GPUs(8, 80), {}, ask_hub=False)
    experts, _ = preset("qwen3-30b-a3b").placed(GPUs(8, 80), {}, ask_hub=False)
    nodes, _ = preset("qwen3.5-397b-a17b-fp8").placed(GPUs(4, 80, nodes=2), {}, ask_hub=False)

    assert "--tensor-parallel-size 2" in " ".join(dense.flags())
    assert "--data-parallel-size 4" in " ".join(dense.flags())
    assert "--enable-expert-parallel" not in dense.flags()
    assert "--enable-expert-parallel" in experts.flags()
    assert "--pipeline-parallel-size 2" in " ".join(nodes.flags())
    assert (dense.gpus(), experts.gpus(), nodes.gpus()) == (8, 8, 8)


def test_placement_and_size_never_enter_identity_or_fingerprint():
    plain = preset("qwen3-8b")
    placed, _ = plain.placed(GPUs(8, 80), {}, ask_hub=False)
    sized = plain.model_copy(update={"size": None})
    said = preset("qwen3-8b", tensor_parallel_size=8)

    for other in (placed, sized, said):
        assert other.spec() == plain.spec()
        assert other.identity() == plain.identity()


def test_a_model_of_unknown_size_gets_one_gpu():
    backend = VLLMBackend(model="org/unknown")

    placed, found = backend.placed(GPUs(8, 80), {"HF_HUB_OFFLINE": "1"}, ask_hub=True)

    assert found is None
    assert placed.gpus() == 1


def test_concurrency_follows_the_replicas_unless_said():
    assert RunSettings().for_replicas(8).concurrency == 512
    assert RunSettings().for_replicas(8).for_replicas(8).concurrency == 512
    assert RunSettings(concurrency=64).for_replicas(8).concurrency == 64
    assert RunSettings().for_replicas(1).concurrency == 64
    assert RunSettings().for_replicas(1_000).concurrency == 10_000


# sizes


def write_weights(path, shape=(4, 8)):
    count = shape[0] * shape[1] * 2
    header = json.dumps(
        {"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, count]}, "__metadata__": {}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(count))


CONFIG = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 1024,
}


def test_a_folder_has_the_size_of_its_files(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_weights(tmp_path / "model.safetensors")

    found = folder_size(tmp_path)

    assert found.weights_gb == pytest.approx(64e-9)
    assert found.kv_bytes_per_token == 4 * 2 * 2 * 8 * 2
    assert (found.attention_heads, found.kv_heads, found.context) == (8, 2, 1024)
    assert model_size(str(tmp_path), None, {}, ask_hub=False) == found
    index = {"metadata": {"total_size": 12_000_000}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert folder_size(tmp_path).weights_gb == pytest.approx(0.012)


@pytest.mark.parametrize("damage", ["no config", "no weights", "not JSON", "cut header"])
def test_a_folder_that_cannot_be_read_has_no_size(tmp_path, damage):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_weights(tmp_path / "model.safetensors")
    if damage == "no config":
        (tmp_path / "config.json").unlink()
    elif damage == "no weights":
        (tmp_path / "model.safetensors").unlink()
    elif damage == "not JSON":
        (tmp_path / "config.json").write_text("{")
    else:
        (tmp_path / "model.safetensors").write_bytes(b"\x10")

    assert folder_size(tmp_path) is None


LINEAR = {
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        (
            "qwen3-32b",
            {"num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
             "head_dim": 128, "max_position_embeddings": 40960},
        ),
        (
            "gpt-oss-20b",
            {"num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
             "head_dim": 64, "sliding_window": 128, "num_local_experts": 32,
             "layer_types": ["sliding_attention", "full_attention"] * 12,
             "max_position_embeddings": 131072},
        ),
        (
            "gemma-4-31b-it",
            {"text_config": {
                "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
                "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4,
                "sliding_window": 1024, "max_position_embeddings": 262144,
                "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10}},
        ),
        (
            "glm-4.7-flash",
            {"num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20,
             "kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_routed_experts": 64,
             "hidden_size": 2048, "max_position_embeddings": 202752},
        ),
        (
            "qwen3.5-27b",
            {"text_config": {
                "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
                "head_dim": 256, "full_attention_interval": 4, "linear_num_value_heads": 48,
                "max_position_embeddings": 262144, **LINEAR}},
        ),
        (
            "nemotron-3-nano-30b-a3b",
            {"num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 2,
             "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128,
             "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 128,
             "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
             "max_position_embeddings": 262144},
        ),
        (
            "qwen3-235b-a22b-fp8",
            {"num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
             "head_dim": 128, "num_experts": 128, "moe_intermediate_size": 1536,
             "quantization_config": {"weight_block_size": [128, 128]},
             "max_position_embeddings": 40960},
        ),
    ],
)  # fmt: skip
def test_a_config_gives_the_size_of_the_preset(name, config):
    size = preset(name).size

    assert size_from_config(config, round(size.weights_gb * 1e9)) == size


# the GPUs at hand


@pytest.fixture
def tool(tmp_path):
    """Makes an executable that prints a text, on a PATH without others."""

    def make(name, text):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\n")
        path.chmod(0o755)
        return {"PATH": str(tmp_path)}

    return make


H100 = "\n".join(f"{n}, GPU-{n}aaa, 81559" for n in range(8))


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 8),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3aaa"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "4,5"}, 2),
    ],
)
def test_nvidia_gpus_are_those_that_are_visible(tool, variables, count):
    found = gpus_at_hand({**tool("nvidia-smi", H100), **variables})

    assert found.count == count
    assert found.memory_gib == pytest.approx(79.65, abs=0.01)
    assert found.source == "nvidia-smi"


def test_no_visible_gpu_is_none(tool):
    assert gpus_at_hand({**tool("nvidia-smi", H100), "CUDA_VISIBLE_DEVICES": ""}) is None


def test_a_part_of_a_gpu_has_unknown_memory(tool):
    found = gpus_at_hand({**tool("nvidia-smi", H100), "CUDA_VISIBLE_DEVICES": "MIG-1-2"})

    assert (found.count, found.memory_gib) == (1, None)


@pytest.mark.parametrize(
    ("variables", "nodes"),
    # nothing starts a server on the other nodes of an allocation without the script of a job
    [({"MBT_NODES": "2"}, 2), ({"SLURM_JOB_NUM_NODES": "2"}, 1)],
)
def test_the_nodes_are_those_over_which_a_server_can_run(tool, variables, nodes):
    found = gpus_at_hand({**tool("nvidia-smi", H100), **variables})

    assert (found.count, found.nodes) == (8, nodes)


MI300 = [{"gpu": n, "vram": {"size": {"value": 196592, "unit": "MB"}}} for n in range(8)]


@pytest.mark.parametrize("document", [MI300, {"gpu_data": MI300}])
@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 8),
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, 4),
        ({"HIP_VISIBLE_DEVICES": "6,7"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "5"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3", "HIP_VISIBLE_DEVICES": "1"}, 1),
    ],
)
def test_amd_gpus_count(tool, document, variables, count):
    found = gpus_at_hand({**tool("amd-smi", json.dumps(document)), **variables})

    assert (found.count, found.source) == (count, "amd-smi")
    assert found.memory_gib == pytest.approx(191.98, abs=0.01)


def test_rocm_smi_is_asked_where_there_is_no_amd_smi(tool):
    cards = {f"card{n}": {"VRAM Total Memory (B)": str(64 << 30)} for n in range(4)}

    found = gpus_at_hand(tool("rocm-smi", json.dumps(cards)))

    assert (found.count, found.memory_gib) == (4, 64)


def test_a_model_is_placed_on_the_gpus_of_the_machine(tool):
    tool("vllm", "")
    nvidia = tool("nvidia-smi", "0, GPU-a, 24564\n1, GPU-b, 24564")

    with pytest.raises(UsageError, match=r"does not fit on 2 GPUs of 23\.99 GiB"):
        preset("qwen3-32b").check(nvidia)
    preset("qwen3-4b").check(nvidia)
    preset("qwen3-32b", tensor_parallel_size=2).check(nvidia)
    preset("qwen3-32b").check({**nvidia, "VLLM_CPU_KVCACHE_SPACE": "8"})
