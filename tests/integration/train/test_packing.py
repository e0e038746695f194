# ruff: noqa: TID253
"""Rows that are packed into one do not see each other, with every attention that runs here."""

import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")

import torch
from transformers import AutoModelForCausalLM
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from mbt_cli.core.recipe import Kernels, Recipe
from mbt_cli.training.models import attentions
from tests.integration.train.tiny_models import tiny_model

ROWS = ([5, 6, 7, 8, 9, 10, 11], [20, 21, 22], [30, 31, 32, 33, 34])


@pytest.fixture
def packed():
    """The rows as TRL gives them to a model when it packs."""
    tokens = [token for row in ROWS for token in row]
    rows = [{"input_ids": tokens, "labels": tokens, "seq_lengths": [len(row) for row in ROWS]}]
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    assert "attention_mask" not in batch
    return batch


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_rows_are_computed_as_alone(tmp_path, packed, attention):
    model = AutoModelForCausalLM.from_pretrained(
        tiny_model(tmp_path), attn_implementation=attention
    )
    given = {name: packed[name] for name in ("input_ids", "position_ids")}
    with torch.no_grad():  # TRL trains without a cache; with one, packed rows are not kept apart
        together = model(**given, use_cache=False).logits[0]
        alone = torch.cat([model(torch.tensor([row]), use_cache=False).logits[0] for row in ROWS])
        unmarked = model(packed["input_ids"], use_cache=False).logits[0]

    assert torch.allclose(together, alone, atol=1e-5)
    # without the positions, later rows would see the first
    assert torch.allclose(unmarked[:7], alone[:7], atol=1e-5)
    assert (unmarked[7:] - alone[7:]).abs().max() > 1e-2


def test_attention_without_a_gpu_is_left_to_transformers(tmp_path):
    recipe = Recipe(method="sft", tuning="full", dtype="bfloat16", batch_size=1, max_length=8)

    assert attentions(recipe) == (None,)
    assert attentions(recipe.model_copy(update={"kernels": Kernels(attention="eager")})) == (
        "eager",
    )
