"""`mbt preset`: a preset from the files of a model."""

import json
import tomllib

import pytest

CONFIG = {
    "model_type": "qwen3",
    "max_position_embeddings": 40960,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
}
GENERATION = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
STUDY = """
[study]
name = "mine"
[models.mine]
preset = "mine"
[benchmarks.tiny]
kind = "tinyhop"
[[stage]]
kind = "rollout"
matrix = { benchmark = "tiny", split = "validation", model = "mine" }
prompt = "answer"
"""


def header(tensors):
    content = json.dumps(tensors).encode()
    return len(content).to_bytes(8, "little") + content


@pytest.fixture
def model(workplace):
    folder = workplace / "weights"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    (folder / "chat_template.jinja").write_text("{% if enable_thinking %}<think>{% endif %}")
    tensors = {"a": {"dtype": "BF16", "shape": [500, 1000], "data_offsets": [0, 1_000_000]}}
    (folder / "model.safetensors").write_bytes(header(tensors))
    return folder


def test_a_preset_has_what_the_files_say_and_a_study_runs_on_it(mbt, model, workplace):
    written = mbt("preset", "./weights", "--file", "presets/models/mine.toml")
    assert written.code == 0, written.err

    preset = tomllib.loads((workplace / "presets/models/mine.toml").read_text())
    assert preset["backend"]["model"] == "./weights"
    assert preset["serve"] == {"max_model_len": 40960, "reasoning_parser": "qwen3"}
    assert preset["sampling"] == {
        **{"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        "max_tokens": 35_840,
    }
    assert preset["size"]["attention_heads"] == 4
    assert preset["size"]["weights_gb"] == pytest.approx(0.001)
    (workplace / "study.toml").write_text(STUDY)
    checked = mbt("check", "study.toml")
    assert checked.code == 0, checked.err


def test_it_is_printed_and_no_file_is_overwritten(mbt, model, workplace):
    (workplace / "mine.toml").write_text("kept")

    printed = mbt("preset", "weights")
    refused = mbt("preset", "weights", "--file", "mine.toml")

    assert tomllib.loads(printed.out)["sampling"]["top_k"] == 20
    assert "enable_thinking = false" in printed.out
    assert refused.code == 2
    assert "`mine.toml` exists" in refused.err
    assert (workplace / "mine.toml").read_text() == "kept"


@pytest.mark.parametrize(
    ("files", "serve", "sampling"),
    [
        ({"generation_config.json": {"do_sample": False, "temperature": 0.7}}, "qwen3", 0.0),
        ({"generation_config.json": None}, "qwen3", 1.0),
        ({"config.json": {**CONFIG, "model_type": "llama"}}, "deepseek_r1", 0.6),
        ({"chat_template.jinja": None}, None, 0.6),
    ],
    ids=["greedy", "no generation config", "another family", "no thinking"],
)
def test_what_is_missing_has_its_usual_value(mbt, model, files, serve, sampling):
    for name, content in files.items():
        if content is None:
            (model / name).unlink()
        else:
            (model / name).write_text(json.dumps(content))

    found = tomllib.loads(mbt("preset", "weights").out)

    assert found["serve"].get("reasoning_parser") == serve
    assert found["sampling"]["temperature"] == sampling


def test_a_folder_without_a_model_is_refused(mbt, workplace):
    (workplace / "empty").mkdir()

    refused = mbt("preset", "empty")

    assert refused.code == 2
    assert "`empty` has no config.json" in refused.err
