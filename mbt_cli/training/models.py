"""Weights and tokenizers: load them for training, save them so that any server can load them."""

import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, GgufConfig

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import Weights
from mbt_cli.training.problems import TrainingError

_FLASH_CAPABILITY = 8
_QUANTIZED_MARKS = ("hf_quantizer", "is_quantized", "quantization_method")
_ARCHITECTURE = "llama"
_LEFT_OUT = ("general.architecture", "general.file_type", "general.quantization_version")


class ModelTokenizer:
    """A model's tokenizer as a `mask.Tokenizer`."""

    def __init__(self, tokenizer: Any, template: Mapping[str, Json]) -> None:
        self._tokenizer = tokenizer
        self._template = dict(template)
        added = {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self.special_tokens = frozenset({*tokenizer.all_special_ids, *added})
        self.end_of_text: str | None = tokenizer.eos_token

    def render(self, messages: Sequence[Message], *, opens_reply: bool) -> str:
        """The conversation as text."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=opens_reply,
            **self._template,
        )
        return str(text)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; none are added."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """The exact text of tokens."""
        text = self._tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)


def load_tokenizer(weights: Weights) -> Any:
    """The tokenizer; TrainingError if it has no chat template."""
    tokenizer = AutoTokenizer.from_pretrained(_place(weights), **_named(weights))
    if not tokenizer.chat_template:
        raise TrainingError(
            f"`{weights.model}` has no chat template, so no prompt can be rendered",
            "use its instruct variant, or add a chat_template.jinja to its folder",
        )
    return tokenizer


def load_model(weights: Weights, recipe: Recipe, *, quantized: bool = False) -> Any:
    """The model in the recipe's number type, with the fastest attention available."""
    options: dict[str, Any] = {
        "dtype": getattr(torch, recipe.dtype),
        "attn_implementation": attention(recipe),
    }
    if is_gguf(weights):
        # packed blocks, which newer versions keep where possible, cannot be trained
        options["quantization_config"] = GgufConfig(dequantize=True)
    if quantized and is_gguf(weights):
        raise TrainingError(
            "weights in a GGUF file cannot be trained in four bits", 'set `recipe.tuning = "lora"`'
        )
    if quantized:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=options["dtype"],
            bnb_4bit_quant_storage=options["dtype"],
        )
    model = AutoModelForCausalLM.from_pretrained(_place(weights), **_named(weights), **options)
    if is_gguf(weights):
        _forget_quantization(model)
    return model


def attention(recipe: Recipe) -> str:
    """The attention implementation; a line in the log gives the reason for SDPA."""
    wanted = recipe.kernels.attention
    if wanted != "auto":
        return wanted
    has_gpu = torch.cuda.is_available()
    if find_spec("flash_attn") is None:
        reason = "flash-attn is not installed"
    elif not has_gpu or torch.cuda.get_device_capability()[0] < _FLASH_CAPABILITY:
        reason = "no GPU here supports flash attention 2"
    else:
        return "flash_attention_2"
    print(f"attention: SDPA, since {reason}", flush=True)  # noqa: T201 - the training's log
    return "sdpa"


def liger(recipe: Recipe) -> bool:
    """Whether liger's layer kernels are used."""
    can = find_spec("liger_kernel") is not None and torch.cuda.is_available()
    return recipe.kernels.liger == "auto" and can


def adapter_config(recipe: Recipe) -> Any:
    """PEFT's configuration; None for full tuning."""
    return None if recipe.tuning == "full" else LoraConfig(**recipe.lora, task_type="CAUSAL_LM")


def parameter_counts(model: Any) -> tuple[int, int]:
    """All parameters and the trained ones, of a model that is not yet sharded."""
    if isinstance(model, PeftModel):
        trained, parameters = model.get_nb_trainable_parameters()
    else:
        trained, parameters = model.num_parameters(only_trainable=True), model.num_parameters()
    return int(parameters), int(trained)


def merged(weights: Weights, recipe: Recipe, adapter: Path) -> Any:
    """The base model with the adapter added to its weights, on the CPU."""
    model = PeftModel.from_pretrained(load_model(weights, recipe), str(adapter))
    return model.merge_and_unload()


def save(model: Any, tokenizer: Any, folder: Path, *, end_token: int) -> None:
    """Write weights, tokenizer and configuration in hub layout, atomically."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.config.use_cache = True
    known = model.generation_config.eos_token_id
    ends = known if isinstance(known, list) else [known] if known is not None else []
    # servers stop at the token that ended a turn in training
    model.generation_config.eos_token_id = list(dict.fromkeys([*ends, end_token]))
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def is_gguf(weights: Weights) -> bool:
    """Whether the weights are a file for llama.cpp."""
    return weights.model.endswith(".gguf")


def _place(weights: Weights) -> str:
    return str(Path(weights.model).parent) if is_gguf(weights) else weights.model


def _named(weights: Weights) -> dict[str, Any]:
    if is_gguf(weights):
        return {"gguf_file": Path(weights.model).name}
    return {"revision": weights.revision, "trust_remote_code": weights.trust_remote_code}


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
    for name, tensor in _tensors(model):
        if name in wanted:
            _add(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return True


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


def _tensors(model: Any) -> Any:
    """Names and values in llama.cpp's layout, in single precision."""
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, value in model.state_dict().items():
        stem, _, suffix = key.rpartition(".")
        name = names.get_name(stem)
        if name is None:
            continue
        tensor = value.detach().to(torch.float32).cpu().numpy()
        part = stem.rpartition(".")[2]
        if part in heads:
            tensor = _reordered(tensor, heads[part])
        yield f"{name}.{suffix}", tensor


def _reordered(matrix: Any, heads: int) -> Any:
    """The rows of each head, interleaved in pairs instead of in halves."""
    rows = matrix.shape[0] // heads // 2
    return matrix.reshape(heads, 2, rows, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)
