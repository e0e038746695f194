"""Trainings that start from the checkpoint of another one."""

# ruff: noqa: TID253
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")
pytest.importorskip("xllamacpp")

import gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from mbt_cli.training.models import _add, _tensors
from tests.integration.train.conftest import STUDY

HEAD = STUDY.partition('[[stage]]\nkind = "train"')[0]
STAGES = """
[[stage]]
kind = "train"
name = "first"
matrix = { model = ["tiny"] }
source = "first"

[[stage]]
kind = "train"
name = "second"
preset = "sft"
matrix = { model = ["tiny"] }
start = "first"
data = { stage = "base", where = { model = "teacher" } }
target = "reply"
prompt = "short.md"
trainer = { bf16 = false, gradient_checkpointing = false, learning_rate = 1e-2, optim = "adamw_torch", max_steps = 2 }
recipe = { tuning = "full", batch_size = 4, device_batch_size = 4, max_length = 512, dtype = "float32" }

[[stage]]
kind = "rollout"
name = "trained"
checkpoints = "second"
matrix = { benchmark = ["tiny"], split = ["train"] }
prompt = "short.md"
samples = 1
"""  # noqa: E501


def write_gguf(folder: Path, target: Path) -> None:
    """A Llama in hub layout as a file for llama.cpp, as its converter writes it."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer, config = AutoTokenizer.from_pretrained(folder), model.config
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    words = tokenizer.convert_ids_to_tokens(range(config.vocab_size))
    special = set(tokenizer.all_special_ids)
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    merges = tokenizer.backend_tokenizer.to_str()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([kinds[number in special] for number in range(len(words))])
    writer.add_token_merges([" ".join(pair) for pair in _merges(merges)])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for name, tensor in _tensors(model.state_dict(), config):
        if name != "output.weight":  # tied to the embeddings
            _add(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _merges(tokenizer: str) -> list[list[str]]:
    import json

    return [
        m.split(" ") if isinstance(m, str) else m for m in json.loads(tokenizer)["model"]["merges"]
    ]


def test_a_model_that_came_as_gguf_is_trained_further_and_served(fresh):
    """The first checkpoint stands for a training of the file: hub layout with the file beside."""
    backend = '{ kind = "transformers", model = "tiny", context = 2048 }'
    served = '{ kind = "llamacpp", model = "tiny.gguf", context = 2048 }'
    assert backend in HEAD
    place = fresh(HEAD.replace(backend, served) + STAGES)
    write_gguf(place.folder / "tiny", place.folder / "tiny.gguf")
    (place.folder / "tiny").rename(place.folder / "first")
    (place.folder / "first" / "model.gguf").hardlink_to(place.folder / "tiny.gguf")

    ran = place.run("run", "study.toml")

    assert ran.code == 0, ran.out
    first, second = (
        place.cell(f"{stage}/model=tiny") / "files" / "checkpoint" for stage in ("first", "second")
    )
    inputs = place.lineage("second/model=tiny")["inputs"]
    assert "first/model=tiny" in inputs
    before, after = (
        {t.name: t.data for t in gguf.GGUFReader(path / "model.gguf").tensors}
        for path in (first, second)
    )
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)
    replies = place.rows("trained/benchmark=tiny/split=train/model=tiny")
    assert replies["failure"].null_count() == replies.height == 12
    read = place.lineage("trained/benchmark=tiny/split=train/model=tiny")["inputs"]
    assert "second/model=tiny" in read
