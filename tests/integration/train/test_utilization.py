"""Operations per token, counted by hand for small models."""

import pytest

pytest.importorskip("peft", reason="the training tests need the extra `train`")

import peft  # noqa: TID253 - this folder runs where it is installed
import transformers  # noqa: TID253

from mbt_cli.core.flops import model_flops_utilization, peak_flops
from mbt_cli.training.utilization import token_cost

SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
}
# q, k, v and o of one layer
ATTENTION = 32 * 32 + 2 * (16 * 32) + 32 * 32


def made(config):
    return transformers.AutoModelForCausalLM.from_config(config)


def llama(**more):
    return made(transformers.LlamaConfig(**SIZE, intermediate_size=64, **more))


def test_tied_embeddings_count_once_and_others_only_as_the_head():
    layer = ATTENTION + 3 * 32 * 64 + 2 * 32
    passed = 2 * layer + 32 + 100 * 32

    assert token_cost(llama(tie_word_embeddings=True)).active == passed
    assert token_cost(llama(tie_word_embeddings=False)).active == passed


def test_attention_counts_at_the_length_of_the_row():
    cost = token_cost(llama())

    # 2 layers x width 32, causal: forward 2 n A, twice that to propagate the gradient
    assert cost.operations(1000) - cost.operations(0) == 6 * 1000 * 2 * 32


def test_a_frozen_model_has_no_gradients_of_its_own():
    frozen = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    cost = token_cost(frozen)

    adapter = 2 * (32 * 4 + 4 * 32)
    assert cost.trained == adapter
    assert cost.operations(0) == 4 * cost.active + 2 * adapter


def test_a_mixture_counts_the_experts_that_a_token_takes():
    cost = token_cost(
        made(
            transformers.Qwen3MoeConfig(
                **SIZE, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2
            )
        )
    )

    norms = 2 * 32 + 2 * 8
    layer = ATTENTION + norms + 8 * 32 + 2 * (3 * 32 * 16)  # two of eight experts, and the router
    assert cost.active == cost.trained == 2 * layer + 32 + 100 * 32


def test_a_window_bounds_what_a_token_attends_to():
    config = transformers.GptOssConfig(
        **SIZE, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
    )

    assert token_cost(made(config)).attention == ((32, 8), (32, None))


def test_each_more_pass_costs_a_forward():
    cost = token_cost(llama())

    forward = 2 * cost.active + 2 * 100 * 64
    assert cost.operations(100, more_passes=2) - cost.operations(100) == 2 * forward


def test_the_peak_is_that_of_the_named_device():
    names = ("NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA A10", "Other")

    assert [peak_flops(name) for name in names] == [835e12, 989e12, 989e12, 125e12, None]
    assert model_flops_utilization(None, 1.0, 1.0, 1) is None
