# ruff: noqa: E402
"""Trained adapters as GGUF files: in llama.cpp's layout they add what merging adds."""

import pytest

torch = pytest.importorskip("torch")

import gguf
import numpy as np

from mbt_cli.training.models import _tensors, write_adapter_gguf

TARGETS = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def with_adapter(folder, **settings):
    """The model with a random adapter merged into it; the adapter is saved in the folder."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=6, target_modules=list(TARGETS), **settings)
    model = get_peft_model(llama(), config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    return model.merge_and_unload()


@pytest.mark.parametrize("stabilized", [False, True])
def test_the_file_adds_what_merging_adds(tmp_path, stabilized):
    merged = with_adapter(tmp_path, use_rslora=stabilized)

    assert write_adapter_gguf(merged, tmp_path, tmp_path / "adapter.gguf")

    reader = gguf.GGUFReader(tmp_path / "adapter.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert (fields["general.type"], fields["adapter.type"]) == ("adapter", "lora")
    parts = {tensor.name: tensor.data.astype(np.float32) for tensor in reader.tensors}
    before = dict(_tensors(llama().state_dict(), merged.config))
    after = dict(_tensors(merged.state_dict(), merged.config))
    matrices = [f"blk.{block}.{part}.weight" for block in range(2) for part in TARGETS.values()]
    assert sorted(parts) == sorted(f"{m}.{half}" for m in matrices for half in ("lora_a", "lora_b"))
    for matrix in matrices:
        a, b = parts[f"{matrix}.lora_a"], parts[f"{matrix}.lora_b"]
        added = fields["adapter.lora.alpha"] / b.shape[1] * (b @ a)
        np.testing.assert_allclose(added, after[matrix] - before[matrix], atol=2e-3)
        assert np.abs(added).max() > 0.05


@pytest.mark.parametrize(
    "settings",
    [{"use_dora": True}, {"rank_pattern": {"q_proj": 2}}, {"modules_to_save": ["lm_head"]}],
)
def test_an_adapter_that_is_more_than_plain_lora_has_no_file(tmp_path, settings):
    merged = with_adapter(tmp_path, **settings)

    assert not write_adapter_gguf(merged, tmp_path, tmp_path / "adapter.gguf")
    assert not (tmp_path / "adapter.gguf").exists()
