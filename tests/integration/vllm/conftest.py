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
