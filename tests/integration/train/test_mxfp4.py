# ruff: noqa: E402
"""Weights of gpt-oss: packed in MXFP4 on the hub, trained and saved as plain numbers."""

import json

import pytest

torch = pytest.importorskip("torch")

from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import Weights
from mbt_cli.training.models import load_model, save
from mbt_cli.training.problems import TrainingError
from tests.integration.train.tiny_models import tokenizer_of

EXPERTS = ("gate_up_proj", "down_proj")


def recipe(dtype, tuning="full"):
    return Recipe(
        method="sft", tuning=tuning, dtype=dtype, batch_size=1, max_length=64,
        kernels={"attention": "eager"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Two layers; every weight of an expert is 1/128 in the first and 1/64 in the second."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, GptOssConfig, set_seed

    folder = tmp_path_factory.mktemp("gpt-oss")
    config = GptOssConfig(
        vocab_size=400, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=32,
    )  # fmt: skip
    set_seed(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(EXPERTS):
            tensors[name] = tensor
            continue
        experts, inner, outer = tensor.shape
        # codes of four bits: 2 is the number 1, and 4 is 2; a scale of 120 is 2 to the power -7
        code = 0x22 if "layers.0" in name else 0x44
        shape = (experts, outer, inner // 32)
        tensors[f"{name}_blocks"] = torch.full((*shape, 16), code, dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.full(shape, 120, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    written["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def experts(model):
    return [getattr(layer.mlp.experts, name) for layer in model.model.layers for name in EXPERTS]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_packed_weights_are_trained_as_plain_numbers(packed, dtype):
    model = load_model(Weights(model=str(packed)), recipe(dtype), to_train=True)
    tokens = torch.arange(8)[None]

    model(input_ids=tokens, labels=tokens).loss.backward()

    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
    assert [weight.detach().float().unique().tolist() for weight in experts(model)] == [
        [1 / 128], [1 / 128], [1 / 64], [1 / 64],
    ]  # fmt: skip
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in experts(model))


def test_a_saved_model_has_every_layer_and_is_not_packed(packed, tmp_path):
    model = load_model(Weights(model=str(packed)), recipe("bfloat16"))
    tokenizer = tokenizer_of("smollm2")

    save(
        model,
        tokenizer,
        tmp_path / "checkpoint",
        end_token=tokenizer.eos_token_id,
        dtype="bfloat16",
    )
    again = load_model(Weights(model=str(tmp_path / "checkpoint")), recipe("bfloat16"))

    written = json.loads((tmp_path / "checkpoint/config.json").read_text())
    assert "quantization_config" not in written
    for (name, before), (_, after) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert torch.equal(before, after), name


def test_packed_weights_are_not_packed_again(packed):
    with pytest.raises(TrainingError, match="weights in MXFP4 cannot be trained in four bits"):
        load_model(Weights(model=str(packed)), recipe("bfloat16", "qlora"), to_train=True)
