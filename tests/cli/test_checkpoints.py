"""Checkpoints from elsewhere, and the way out: a train cell as a model repository."""

import json

import polars as pl
import pytest

from mbt_cli.core import rows
from tests.unit.hub_stand_in import COMMIT, Hub, running

STUDY = """
[study]
name = "taken"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 32

[models.small]
backend = {{ kind = "vllm", model = "org/base" }}
sampling = "plain"

[[stage]]
kind = "train"
name = "sft"
matrix = {{ model = ["small"] }}
source = "{source}"
"""
LATER = """
[benchmarks.tiny]
kind = "tinyhop"
limit = 2

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["tiny"], split = ["train"], model = ["small"] }
prompt = "answer"
samples = 1

[[stage]]
kind = "train"
name = "later"
preset = "sft"
matrix = { model = ["small"] }
data = "base"
target = "reply"
prompt = "answer"
"""
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"\1" * 3_000_000,
    "tokenizer.json": b"{}",
    "README.md": b"theirs",
}
CELL = "runs/taken/sft/model=small"


@pytest.fixture
def folder(workplace):
    """A checkpoint that somebody else trained."""
    made = workplace / "theirs"
    made.mkdir()
    for name, content in FILES.items():
        (made / name).write_bytes(content)
    (workplace / "study.toml").write_text(STUDY.format(source="theirs"))
    return made


def test_a_folder_replaces_a_training_and_counts_by_its_content(mbt, workplace, folder):
    first = mbt("train", "study.toml")
    folder.rename(workplace / "moved")
    (workplace / "study.toml").write_text(STUDY.format(source="moved"))
    moved = mbt("train", "study.toml")
    weights = workplace / "moved/model.safetensors"
    weights.write_bytes(FILES["model.safetensors"][:-1] + b"\2")
    changed = mbt("train", "study.toml")

    assert first.code == 0, first.err
    assert "0 cells run, 1 already done" in moved.out
    assert changed.code != 0
    assert "sampled_sha256" in changed.err


def test_a_hub_repository_replaces_a_training_at_its_revision(mbt, workplace):
    (workplace / "study.toml").write_text(STUDY.format(source=f"hub:org/theirs@{COMMIT}"))
    with running(Hub({"models/org/theirs": FILES})) as hub:
        taken = mbt("train", "study.toml", HF_ENDPOINT=hub.endpoint, HF_HOME=str(workplace / "hf"))

    assert taken.code == 0, taken.err
    checkpoint = workplace / CELL / "files/checkpoint"
    assert {path.name for path in checkpoint.iterdir()} == FILES.keys() - {"README.md"}
    notes = json.loads((workplace / CELL / "lineage.json").read_text())["notes"]
    assert notes["training"]["revision"] == COMMIT


def test_a_train_cell_is_exported_as_a_model_with_its_card(mbt, workplace, folder):
    mbt("train", "study.toml")

    told = mbt("export", CELL, "--to", "out")
    assert not (workplace / "out").exists()
    written = mbt("export", CELL, "--to", "out", "--write")

    assert told.code == written.code == 0, told.err + written.err
    assert "nothing is written" in told.out
    out = workplace / "out"
    assert (out / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    card = (out / "README.md").read_text()
    assert "base_model: org/base" in card
    assert "This checkpoint has no scores yet." in card
    assert json.loads((out / "lineage.json").read_text())["address"] == "sft/model=small"


def test_show_sample_marks_the_trained_tokens(mbt, workplace, folder):
    (workplace / "study.toml").write_text(STUDY.format(source="theirs") + LATER)
    mbt("train", "study.toml", "--only", "sft")
    before = mbt("train", "study.toml", "--show-sample")
    row = {"source": "data", "question_id": "q1", "sample": 0, "trace_id": None}
    row |= {"prompt": "user: 2 + 2?\nassistant: ", "completion": "4<end>", "tokens": 9}
    kept = {**row, "trained_tokens": 2, "dropped": None}
    dropped = {**dict.fromkeys(row), "question_id": "q2", "dropped": "too long: 9000 tokens"}
    rows_of = pl.DataFrame([kept, dropped], schema=rows.TRAINING_SET)
    rows_of.write_parquet(workplace / CELL / "files/training_set.parquet")

    shown = mbt("train", "study.toml", "--show-sample")

    assert before.code != 0
    assert "has no training set yet" in before.err
    assert shown.code == 0, shown.err
    assert "assistant: [trained:] 4<end> [:trained]" in shown.out
    assert "1 rows of 2, 2 trained tokens of 9" in shown.out
    assert shown.out.count("[trained:]") == 1  # the other training has not begun
