"""Weights: load them for training, save them so that any server can load them."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import orjson
import torch
from peft import LoraConfig, PeftModel
from peft.utils import load_peft_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GgufConfig,
    Mxfp4Config,
)
from transformers.integrations import deepspeed
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils.import_utils import (
    is_flash_attn_2_available,
    is_flash_attn_3_available,
    is_flash_attn_4_available,
)

from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import Weights
from mbt_cli.training.problems import TrainingError
from mbt_cli.training.tokenizer import hub_arguments, hub_place, is_gguf

_FLASH = ((10, (4, 2)), (9, (3, 4, 2)), (8, (2, 3)))
"""Lowest compute capability to versions of flash attention, the fastest first."""
_QUANTIZED_MARKS = ("hf_quantizer", "is_quantized", "quantization_method")
_ARCHITECTURE = "llama"
_LORA_A, _LORA_B = ".lora_A.weight", ".lora_B.weight"
_IN_PEFT = "base_model.model."
"""What PEFT puts before the names of the model's own weights."""
_LEFT_OUT = ("general.architecture", "general.file_type", "general.quantization_version")


def load_model(weights: Weights, recipe: Recipe, *, to_train: bool = False) -> Any:
    """The model with the fastest attention available.

    Its weights are in the number type of the checkpoint, or `to_train` as the recipe trains them.
    """
    quantized = to_train and recipe.tuning == "qlora"
    is_trained = to_train and recipe.tuning == "full"
    options: dict[str, Any] = {
        "dtype": getattr(torch, recipe.trained_dtype() if is_trained else recipe.dtype),
    }
    if is_gguf(weights):
        # packed blocks, which newer versions keep where possible, cannot be trained
        options["quantization_config"] = GgufConfig(dequantize=True)
    if is_mxfp4 := not is_gguf(weights) and _is_mxfp4(weights):
        # gpt-oss: the kernels of packed weights have no backward pass
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    if quantized and (is_gguf(weights) or is_mxfp4):
        form = "MXFP4" if is_mxfp4 else "a GGUF file"
        raise TrainingError(
            f"weights in {form} cannot be trained in four bits", 'set `recipe.tuning = "lora"`'
        )
    if quantized:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=options["dtype"],
            bnb_4bit_quant_storage=options["dtype"],
        )
    if recipe.kernels.liger == "hub" and to_train:
        options["use_kernels"] = True
    names = attentions(recipe) if to_train else (None,)
    model = _loaded(weights, options, names)
    if is_gguf(weights):
        _forget_quantization(model)
    if is_mxfp4:
        # saving would reverse the conversion of packed weights, and write one tensor for all layers
        model._weight_conversions = None
        model.to(options["dtype"])  # experts are bfloat16 whatever was asked for
    if to_train and liger(recipe):
        # TRL's loss needs the model's own head
        apply_liger_kernel(model, {"fused_linear_cross_entropy": False})
    return model


def _is_mxfp4(weights: Weights) -> bool:
    config = AutoConfig.from_pretrained(hub_place(weights), **hub_arguments(weights))
    stored = getattr(config, "quantization_config", None) or {}
    return stored.get("quant_method") == "mxfp4"


def _loaded(weights: Weights, options: Mapping[str, Any], names: Sequence[str | None]) -> Any:
    """The model with the first of these attentions that it supports; None is transformers' own.

    Raises:
        TrainingError: There is one name, and the model or this machine does not support it.
    """
    for number, name in enumerate(names, 1):
        try:
            return AutoModelForCausalLM.from_pretrained(
                hub_place(weights),
                **hub_arguments(weights),
                **options,
                **({} if name is None else {"attn_implementation": name}),
            )
        except (ImportError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else repr(error)
            if name is not None and number == len(names):
                raise TrainingError(
                    f"the model does not load with the attention `{name}`: {reason}",
                    'set `recipe.kernels.attention = "auto"`, or install what it needs',
                ) from error
            if name is None:
                raise
            print(f"attention: not {name}: {reason}", flush=True)  # noqa: T201 - training's log
    raise AssertionError("there is always a name")


def attentions(recipe: Recipe) -> tuple[str | None, ...]:
    """Attention implementations to try, the fastest first; None stands for transformers' choice.

    Flash attention 3 was written for Hopper (9.0), 4 for Blackwell (10.0) and later; both run on
    neighbours of these, and 2 from Ampere (8.0) on. None computes in float32. Transformers' own
    choice is SDPA, or eager attention where a model does not support SDPA.
    """
    wanted = recipe.kernels.attention
    if wanted != "auto":
        return (wanted,)
    is_half = recipe.dtype == "bfloat16" or recipe.trainer.get("bf16", True)
    if recipe.launch.parallelism("cp") > 1:
        return ("sdpa",)
    if not torch.cuda.is_available() or not is_half:
        return (None,)
    found = {
        4: is_flash_attn_4_available(),
        3: is_flash_attn_3_available(),
        2: is_flash_attn_2_available(),
    }
    major = torch.cuda.get_device_capability()[0]
    order = next((versions for lowest, versions in _FLASH if major >= lowest), ())
    return (*(f"flash_attention_{n}" for n in order if found[n]), None)


def liger(recipe: Recipe) -> bool:
    """Whether liger's layer kernels are used."""
    can = find_spec("liger_kernel") is not None and torch.cuda.is_available()
    return recipe.kernels.liger == "auto" and can


def adapter_config(recipe: Recipe) -> Any:
    """PEFT's configuration; None for full tuning."""
    return None if recipe.tuning == "full" else LoraConfig(**recipe.lora, task_type="CAUSAL_LM")


def keep_trained_weights_in(model: Any, dtype: str) -> None:
    """Give the trained weights of an adapter their number type.

    PEFT makes them float32, and TRL bfloat16 if the model is in four bits. All other trained
    weights were loaded in their type.
    """
    for name, weight in model.named_parameters():
        # bfloat16 is too coarse for the updates of DoRA's magnitudes
        if weight.requires_grad and "lora_magnitude_vector" not in name:
            weight.data = weight.data.to(getattr(torch, dtype))


def ends_with(model: Any, end_token: int) -> list[int]:
    """The tokens that end a reply of the model, and the one that ends a turn."""
    known = model.generation_config.eos_token_id
    ends = known if isinstance(known, list) else [known] if known is not None else []
    return list(dict.fromkeys([*ends, end_token]))


def parameter_counts(model: Any) -> tuple[int, int]:
    """All parameters and the trained ones, of a model that is not yet sharded."""
    if isinstance(model, PeftModel):
        trained, parameters = model.get_nb_trainable_parameters()
    else:
        trained, parameters = model.num_parameters(only_trainable=True), model.num_parameters()
    return int(parameters), int(trained)


@contextmanager
def on_this_process_alone() -> Iterator[None]:
    """Load whole models here; with ZeRO-3, transformers would wait for all other processes."""
    config = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config


def merged(weights: Weights, recipe: Recipe, adapter: Path) -> Any:
    """The base model with the adapter added to its weights, on the CPU."""
    model = PeftModel.from_pretrained(load_model(weights, recipe), str(adapter))
    return model.merge_and_unload()


def save(model: Any, tokenizer: Any, folder: Path, *, end_token: int, dtype: str) -> None:
    """Write weights, tokenizer and configuration in hub layout, atomically.

    The model may go on training: it keeps its settings and its number type.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: Where it is written.
        end_token: The token that ended a turn in training, at which servers stop.
        dtype: Number type of the weights that are written.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    cached, ends = model.config.use_cache, model.generation_config.eos_token_id
    model.config.use_cache = True
    model.generation_config.eos_token_id = ends_with(model, end_token)
    try:
        if model.dtype == getattr(torch, dtype):
            model.save_pretrained(partial)
        else:
            model.save_pretrained(partial, state_dict=_in_type(model, dtype))
            config = orjson.loads((partial / "config.json").read_bytes())
            config |= {key: dtype for key in ("dtype", "torch_dtype") if key in config}
            (partial / "config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    finally:
        model.config.use_cache, model.generation_config.eos_token_id = cached, ends
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _in_type(model: Any, dtype: str) -> dict[str, Any]:
    """The weights on the CPU in a number type; tensors that are shared stay shared."""
    found: dict[str, Any] = {}
    made: dict[tuple[int, Any], Any] = {}
    for name, tensor in model.state_dict().items():
        key = tensor.data_ptr(), tensor.shape
        if key not in made:
            to = getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype
            made[key] = tensor.detach().to("cpu", to)
        found[name] = made[key]
    return found


def _forget_quantization(model: Any) -> None:
    """Weights read from a GGUF file are not quantized any more; remove the marks that say so."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for name in _QUANTIZED_MARKS:
        if hasattr(model, name):
            setattr(model, name, False if name == "is_quantized" else None)


def write_gguf(model: Any, source: Path, target: Path) -> bool:
    """Write the model's weights in eight bits; False if the architecture is not supported.

    Eight bits (Q8_0) answer like half precision, in half the memory and, without a GPU, 1.5 times
    as fast.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    if architecture != _ARCHITECTURE or model.config.model_type != _ARCHITECTURE:
        print(f"no GGUF file: `{architecture}` is not supported", flush=True)  # noqa: T201
        return False
    writer = gguf.GGUFWriter(target, _ARCHITECTURE)
    _copy_settings(reader, writer)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    wanted = {tensor.name for tensor in reader.tensors}
    for name, tensor in _tensors(model.state_dict(), model.config):
        if name in wanted:
            _add(writer, name, tensor)
    _write(writer)
    return True


def write_adapter_gguf(model: Any, adapter: Path, target: Path) -> bool:
    """Write a LoRA adapter for llama.cpp, in half precision; False if it cannot hold the adapter.

    Args:
        model: The model that the adapter was merged into.
        adapter: Folder of the adapter in PEFT's layout.
        target: The GGUF file.
    """
    settings = LoraConfig.from_pretrained(str(adapter))
    weights = load_peft_weights(str(adapter), device="cpu")
    is_plain = all(name.endswith((_LORA_A, _LORA_B)) for name in weights)
    if (
        model.config.model_type != _ARCHITECTURE
        or not is_plain
        or settings.alpha_pattern
        or settings.rank_pattern
    ):
        print("no GGUF file of the adapter: it is not a plain LoRA of a Llama", flush=True)  # noqa: T201
        return False
    writer = gguf.GGUFWriter(target, _ARCHITECTURE)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    # llama.cpp multiplies by alpha / r, rank-stabilized LoRA by alpha / sqrt(r)
    stabilized = math.sqrt(settings.r) if settings.use_rslora else 1.0
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, settings.lora_alpha * stabilized)
    for ending, suffix in ((_LORA_A, "lora_a"), (_LORA_B, "lora_b")):
        half = {
            f"{name.removeprefix(_IN_PEFT).removesuffix(ending)}.weight": tensor
            for name, tensor in weights.items()
            if name.endswith(ending)
        }
        # the rows of A are ranks, those of B are the rows of the matrix
        for name, tensor in _tensors(half, model.config, has_heads=ending == _LORA_B):
            writer.add_tensor(f"{name}.{suffix}", tensor.astype(np.float16))
    _write(writer)
    return True


def _write(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_settings(reader: Any, writer: Any) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in _LEFT_OUT or not field.types:
            continue
        is_list = field.types[0] == gguf.GGUFValueType.ARRAY
        inner = field.types[-1] if is_list else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)


def _add(writer: Any, name: str, tensor: Any) -> None:
    """Matrices in eight bits if their rows divide into blocks, else in half precision."""
    kind = gguf.GGMLQuantizationType.Q8_0
    if tensor.ndim == 1:
        writer.add_tensor(name, tensor)
    elif tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        writer.add_tensor(name, tensor.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def _tensors(weights: Mapping[str, Any], config: Any, *, has_heads: bool = True) -> Any:
    """Names and values in llama.cpp's layout, in single precision.

    `has_heads` is false for matrices whose rows do not belong to heads of attention.
    """
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, value in weights.items():
        stem, _, suffix = key.rpartition(".")
        name = names.get_name(stem)
        if name is None:
            continue
        tensor = value.detach().to(torch.float32).cpu().numpy()
        part = stem.rpartition(".")[2]
        if has_heads and part in heads:
            tensor = _reordered(tensor, heads[part])
        yield f"{name}.{suffix}", tensor


def _reordered(matrix: Any, heads: int) -> Any:
    """The rows of each head, interleaved in pairs instead of in halves."""
    rows = matrix.shape[0] // heads // 2
    return matrix.reshape(heads, 2, rows, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)
