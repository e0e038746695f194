"""The estimate of memory against what real trainings take on processors."""

import json

import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: TID253 - installed where this runs

from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_memory import ModelShape, memory_parts
from tests.integration.train.conftest import make_place
from tests.integration.train.tiny_models import tokenizer_of

ADDRESS = "sft/model=tiny/variant=full"
WIDE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}


def memory_of(place) -> float:
    assert place.run("run", "study.toml", "--only", "base").code == 0
    ran = place.run("train", "study.toml", "--only", ADDRESS)
    assert ran.code == 0, ran.out
    return float(place.rows(ADDRESS)["memory_bytes"].max())


@pytest.mark.long
def test_a_larger_model_takes_more_memory_by_what_the_formula_says(tmp_path):
    for name in ("small", "wide"):
        (tmp_path / name).mkdir()
    small, wide = (make_place(tmp_path / name) for name in ("small", "wide"))
    tokenizer = tokenizer_of("smollm2")
    config = LlamaConfig(
        **WIDE,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=len(tokenizer),
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(wide.folder / "tiny")

    more = memory_of(wide) - memory_of(small)  # libraries take the same in both

    stored = json.loads((wide.folder / "tiny/config.json").read_text())
    shape = ModelShape.from_config(stored)
    assert shape.parameters == model.num_parameters()
    recipe = Recipe.model_validate(
        {
            **{"method": "sft", "tuning": "full", "dtype": "float32", "batch_size": 4},
            **{"device_batch_size": 2, "max_length": 512},
            "trainer": {"gradient_checkpointing": False},
        }
    )
    length = int(wide.rows(ADDRESS)["tokens"].max() / 48)  # 24 rows, twice
    parts = memory_parts(shape, recipe, processes=1, length=length, gpu=None)
    assert 0.5 < more / sum(parts.values()) < 2
