"""Questions that are trained and evaluated on, and completions that repeat, are told."""

import json

import pytest

STUDY = """
[study]
name = "mixed"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.teacher]
backend = { kind = "canned", replies = ["<answer>Oslo</answer>", "<answer>Rome</answer>"] }
sampling = "plain"

[models.tiny]
backend = { kind = "transformers", model = "org/tiny", context = 2048 }
sampling = "plain"

[benchmarks.mine]
kind = "question_answer"
files = { train = "train.jsonl", validation = "validation.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["mine"], split = ["train"], model = ["teacher"] }
prompt = "answer"
samples = 1

[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = ["tiny"] }
data = { stage = "base", where = { model = "teacher" } }
target = "reply"

[[stage]]
kind = "rollout"
name = "trained"
checkpoints = "sft"
matrix = { benchmark = ["mine"], split = ["validation"] }
prompt = "answer"
samples = 1
"""
TRAIN = {"a": "Who wrote the book?", "b": "Where is Oslo?", "c": "When was it?", "d": "Why so?"}
VALIDATION = {"a": "Who else?", "v": "where is  Oslo", "w": "What for?"}
TRAINED, HELD = (f"questions/benchmark=mine/split={s}" for s in ("train", "validation"))


@pytest.fixture
def study(workplace):
    for name, questions in (("train", TRAIN), ("validation", VALIDATION)):
        lines = [{"id": i, "question": q, "answer": "Oslo"} for i, q in questions.items()]
        (workplace / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (workplace / "mixed.toml").write_text(STUDY)
    return workplace


def found(mbt) -> list[str]:
    told = mbt("check", "mixed.toml", "--json")
    assert told.code == 0, told.err
    return json.loads(told.out)["contamination"]


def test_a_study_without_finished_cells_has_nothing_to_compare(mbt, study):
    assert found(mbt) == []


def test_check_names_shared_questions_and_repeated_completions(mbt, study):
    assert mbt("run", "mixed.toml", "--only", "base", "--only", "questions", "-q").code == 0

    questions, completions = found(mbt)

    # not `a`: the ids are equal, the texts are not
    assert questions == (
        f"contamination: 1 of 3 questions of `{HELD}` also stand in `{TRAINED}`, such as `v` is `b`"
    )
    assert completions.startswith("contamination: 4 of 4 rows of `base/")
    assert "stands under another question too (" in completions
    assert "contamination: 1 of 3 questions" in " ".join(mbt("check", "mixed.toml").out.split())


def test_a_damaged_cell_does_not_stop_check(mbt, study):
    assert mbt("run", "mixed.toml", "--only", "base", "--only", "questions", "-q").code == 0
    (study / "runs" / "mixed" / HELD / "rows.parquet").write_bytes(b"PAR1")

    (completions,) = found(mbt)

    assert "rows of `base/" in completions


def test_the_data_card_counts_both(mbt, study):
    assert mbt("run", "mixed.toml", "--only", "base", "--only", "questions", "-q").code == 0
    assert mbt("export", "runs/mixed/base", "--to", "out", "--write").code == 0

    card = (study / "out/README.md").read_text()

    assert "## Contamination" in card
    assert f"- 1 of 3 questions of `{HELD}` also stand in `{TRAINED}`" in card
    assert "- 4 of 4 rows of `base/" in card
