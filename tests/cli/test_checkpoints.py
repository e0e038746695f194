"""Checkpoints from elsewhere, and the way out: a train cell as a model repository."""

import json

import polars as pl
import pytest

from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.backends.weights import check_names
from mbt_cli.core import rows
from mbt_cli.errors import UsageError
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
    assert "1 of 2 rows, 2 trained tokens of 9" in shown.out
    assert shown.out.count("[trained:]") == 1  # the other training has not begun


INDEX = "model.safetensors.index.json"
ONE = "model-00001-of-00001.safetensors"
TENSORS = ("model.embed.weight", "model.norm.weight")


def safetensors(*names):
    """A file of tensors of one number each."""
    header = {
        "__metadata__": {"format": "pt"},
        **{
            name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
            for n, name in enumerate(names)
        },
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 4 * len(names)


def checkpoint(folder, files, weight_map):
    folder.mkdir()
    index = {"metadata": {"total_size": 8}, "weight_map": weight_map}
    for name, content in {
        "config.json": b'{"model_type": "llama"}',
        INDEX: json.dumps(index).encode(),
        **files,
    }.items():
        (folder / name).write_bytes(content)
    return folder


def test_weights_are_taken_over_under_the_names_of_their_index(mbt, workplace):
    # the index also names the tied head, which the file does not repeat
    weight_map = dict.fromkeys((*TENSORS, "lm_head.weight"), ONE)
    checkpoint(workplace / "mine", {"model.safetensors": safetensors(*TENSORS)}, weight_map)
    (workplace / "study.toml").write_text(STUDY.format(source="mine"))

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    assert f"weights in `model.safetensors` are kept as `{ONE}`" in ran.err
    kept = workplace / CELL / "files/checkpoint"
    assert {path.name for path in kept.glob("*.safetensors")} == {ONE}
    lineage = json.loads((workplace / CELL / "lineage.json").read_text())
    assert lineage["notes"]["training"]["renamed"] == {"model.safetensors": ONE}
    assert (workplace / "mine/model.safetensors").is_file()


def test_a_checkpoint_without_a_file_of_its_index_is_refused(mbt, workplace):
    weight_map = {TENSORS[0]: "a.safetensors", TENSORS[1]: "b.safetensors"}
    checkpoint(workplace / "mine", {"a.safetensors": safetensors(TENSORS[0])}, weight_map)
    (workplace / "study.toml").write_text(STUDY.format(source="mine"))

    ran = mbt("run", "study.toml")

    assert ran.code == 1
    assert "has no `b.safetensors`, which its model.safetensors.index.json names" in ran.err


def test_a_folder_that_is_served_says_what_to_type(tmp_path):
    weight_map = dict.fromkeys(TENSORS, ONE)
    folder = checkpoint(
        tmp_path / "my model", {"model.safetensors": safetensors(*TENSORS)}, weight_map
    )
    backend = VLLMBackend(model=str(folder))

    with pytest.raises(UsageError, match=f"index.json names `{ONE}`") as refused:
        backend.check({})

    assert refused.value.hint == f"mv '{folder}/model.safetensors' '{folder}/{ONE}'"
    (folder / "model.safetensors").rename(folder / ONE)
    check_names(str(folder))
    check_names("org/base")
