"""SmolLM2 in hub layout, made once from the embedded model's file."""

import os
from pathlib import Path

import pytest

from mbt_cli.backends.llamacpp import smollm2_weights
from mbt_cli.core.serving import ServerPlace
from mbt_cli.settings import read_machine


@pytest.fixture(scope="session")
def hub_layout() -> Path:
    pytest.importorskip("torch", reason="needs .venv-vllm: .ci/setup_vllm.sh makes it")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    cache = read_machine().cache
    folder = cache / "weights" / "SmolLM2-135M-Instruct"
    if (folder / "done").is_file():
        return folder
    gguf = smollm2_weights(ServerPlace(cache / "log", cache, dict(os.environ)))
    names = {"gguf_file": gguf.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype="bfloat16", **names
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **names)
    # it was read from four bits and is written as plain numbers: nothing may say otherwise
    model.hf_quantizer = None
    model.is_quantized = False
    for owner, mark in ((model.config, "quantization_config"), (model, "quantization_method")):
        if hasattr(owner, mark):
            delattr(owner, mark)
    # vLLM's reasoning parsers want these two; untrained, the model never says them
    tokenizer.add_tokens(["<think>", "</think>"])
    model.resize_token_embeddings(len(tokenizer))
    # a limit of the model's own that must not cap replies
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "done").touch()
    return folder


@pytest.fixture(scope="session")
def even_heads(hub_layout: Path) -> Path:
    """The same model with a fourth head of keys and values, of zeros, so that two nodes share it.

    Its replies are those of SmolLM2: the output projection ignores the new heads.
    """
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folder = hub_layout.with_name("SmolLM2-135M-Instruct-12-heads")
    if (folder / "done").is_file():
        return folder
    model = transformers.AutoModelForCausalLM.from_pretrained(hub_layout, dtype="bfloat16")
    width = model.config.hidden_size // model.config.num_attention_heads
    for layer in model.model.layers:
        own = layer.self_attn
        for projection, heads in ((own.q_proj, 3), (own.k_proj, 1), (own.v_proj, 1)):
            more = torch.zeros(heads * width, model.config.hidden_size, dtype=torch.bfloat16)
            projection.weight = torch.nn.Parameter(torch.cat([projection.weight.data, more]))
        more = torch.zeros(model.config.hidden_size, 3 * width, dtype=torch.bfloat16)
        own.o_proj.weight = torch.nn.Parameter(torch.cat([own.o_proj.weight.data, more], dim=1))
    model.config.num_attention_heads, model.config.num_key_value_heads = 12, 4
    model.config.head_dim = width
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(hub_layout).save_pretrained(folder)
    (folder / "done").touch()
    return folder
