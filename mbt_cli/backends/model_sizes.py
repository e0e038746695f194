"""The size of a model that has no `[size]`: from its folder, the hub's cache, or the hub.

The bytes of the weights are in the headers of its safetensors files, which are read without the
weights; what the cache needs follows from its config.json.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from mbt_cli.backends.weights import is_folder
from mbt_cli.core.placement import ModelSize

_FULL = ("full_attention", "attention", "*")
_LINEAR = ("linear_attention", "mamba", "M")
_OTHER = ("moe", "mlp", "E", "-")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_STATE_BYTES = 4
_CACHE_BYTES = 2


def model_size(
    model: str, revision: str | None, environment: Mapping[str, str], *, ask_hub: bool
) -> ModelSize | None:
    """The size of a model; None if it cannot be found out.

    Args:
        model: Name on the hub, or a folder.
        revision: Revision on the hub.
        environment: The process environment, for the hub's address and token.
        ask_hub: Whether the hub is asked for what is not on this machine.
    """
    if is_folder(model):
        return folder_size(Path(model).expanduser())
    # damaged files, networks and hubs fail in many ways, and none of them stops a run
    with suppress(Exception):
        found = _cached_size(model, revision)
        if found is None and ask_hub and not _is_offline(environment):
            found = _hub_size(model, revision, environment)
        return found
    return None


def folder_size(folder: Path) -> ModelSize | None:
    """The size of a model in a folder; None without a readable config and weights."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        config = orjson.loads((folder / "config.json").read_bytes())
        index = folder / "model.safetensors.index.json"
        weights = 0
        if index.is_file():
            weights = int(orjson.loads(index.read_bytes())["metadata"]["total_size"])
        elif files := sorted(folder.glob("*.safetensors")):
            weights = sum(_header_bytes(path) for path in files)
        return size_from_config(config, weights) if weights else None
    return None


def size_from_config(config: Mapping[str, Any], weights: int) -> ModelSize:
    """The size by a config.json.

    A sliding window counts only where the layers that have it are listed (`layer_types`); other
    layers are taken to attend to everything, which is the larger cache.

    Args:
        config: The parsed file.
        weights: Bytes of the weights.

    Raises:
        KeyError, TypeError, ValueError: The config lacks a size.
    """
    text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}
    layers, heads = int(text["num_hidden_layers"]), int(text["num_attention_heads"])
    keys = int(text.get("num_key_value_heads") or heads)
    width = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
    kinds = _kinds(text, layers)
    full = sum(kind in _FULL for kind in kinds)
    linear = sum(kind in _LINEAR for kind in kinds)
    windows = len(kinds) - full - linear - sum(kind in _OTHER for kind in kinds)
    window_bytes = windows * 2 * keys * width * _CACHE_BYTES
    full_bytes = full * 2 * keys * width * _CACHE_BYTES
    if latent := text.get("kv_lora_rank"):
        keys = 1
        full_bytes = full * (int(latent) + int(text["qk_rope_head_dim"])) * _CACHE_BYTES
    elif text.get("global_head_dim"):  # Gemma 4: layers with full attention have other heads
        own = int(text.get("num_global_key_value_heads") or keys)
        full_bytes = full * 2 * own * int(text["global_head_dim"]) * _CACHE_BYTES
        keys = min(keys, own)
    experts = next((int(text[name]) for name in _EXPERTS if text.get(name)), 0)
    quantization = config.get("quantization_config") or {}
    block = quantization.get("weight_block_size")
    expert_width = int(text.get("moe_intermediate_size") or 0)
    context = text.get("max_position_embeddings")
    return ModelSize(
        weights_gb=weights / 1e9,
        attention_heads=heads,
        kv_heads=keys,
        kv_bytes_per_token=full_bytes,
        window_bytes_per_token=window_bytes,
        window_tokens=int(text.get("sliding_window") or text.get("attention_chunk_size") or 0),
        state_bytes_per_request=linear * _state_bytes(text),
        experts=experts,
        weight_blocks=expert_width // int(block[0]) if block and expert_width else 0,
        context=int(context) if context else None,
    )


def _kinds(text: Mapping[str, Any], layers: int) -> list[str]:
    """What each layer is."""
    named = text.get("layer_types") or text.get("layers_block_type")
    if named:
        return [str(kind) for kind in named]
    if pattern := text.get("hybrid_override_pattern"):
        return list(str(pattern))
    if every := text.get("full_attention_interval"):
        return [_LINEAR[0] if (n + 1) % int(every) else _FULL[0] for n in range(layers)]
    return [_FULL[0]] * layers


def _state_bytes(text: Mapping[str, Any]) -> int:
    """Bytes of the state of one layer with linear attention or Mamba, in float32."""
    if heads := text.get("linear_num_value_heads"):
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        values = int(heads) * int(text["linear_value_head_dim"])
        state = values * int(text["linear_key_head_dim"])
        convolved, kernel = 2 * keys + values, int(text.get("linear_conv_kernel_dim") or 4)
    elif heads := text.get("mamba_num_heads"):
        values = int(heads) * int(text["mamba_head_dim"])
        state = values * int(text["ssm_state_size"])
        groups = int(text.get("n_groups") or 1)
        convolved = values + 2 * groups * int(text["ssm_state_size"])
        kernel = int(text.get("conv_kernel") or 4)
    else:
        return 0
    return state * _STATE_BYTES + convolved * (kernel - 1) * _CACHE_BYTES


def _header_bytes(path: Path) -> int:
    # safetensors: the length of a JSON object in eight bytes, the object, the data
    with path.open("rb") as file:
        header = orjson.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(
        tensor["data_offsets"][1] - tensor["data_offsets"][0]
        for name, tensor in header.items()
        if name != "__metadata__"
    )


def _is_offline(environment: Mapping[str, str]) -> bool:
    values = (environment.get(name, "") for name in ("HF_HUB_OFFLINE", "MBT_OFFLINE"))
    return any(value.lower() in ("1", "true", "yes", "on") for value in values)


def _cached_size(model: str, revision: str | None) -> ModelSize | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return folder_size(Path(found).parent) if isinstance(found, str) else None


def _hub_size(model: str, revision: str | None, environment: Mapping[str, str]) -> ModelSize | None:
    from huggingface_hub import HfApi

    api = HfApi(
        endpoint=environment.get("HF_ENDPOINT") or None, token=environment.get("HF_TOKEN") or None
    )
    config = Path(api.hf_hub_download(model, "config.json", revision=revision))
    metadata = api.get_safetensors_metadata(model, revision=revision)
    weights = sum(
        tensor.data_offsets[1] - tensor.data_offsets[0]
        for file in metadata.files_metadata.values()
        for tensor in file.tensors.values()
    )
    return size_from_config(orjson.loads(config.read_bytes()), weights)
