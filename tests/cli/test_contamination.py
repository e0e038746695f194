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


NEAR = "Which river flows past the old mill that Anna Berg painted in 1871?"
REPORT = """
[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match"]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results", "data_funnel"]
"""


@pytest.fixture
def near_study(study):
    """A question with another year, one with a third of its words, and one of a template."""
    template = "Where was the director of the film {} born?"
    train = [NEAR, *(template.format(film) for film in ("Alba", "Brisa", "Corona", "Duna"))]
    held = [
        NEAR.replace("1871", "1872"),
        "Which river flows past the city where Anna Berg was buried by her sons?",
        template.format("Estrella"),
    ]
    for name, questions in (("train", train), ("validation", held)):
        lines = [
            {"id": f"{name[0]}{k}", "question": question, "answer": "Oslo"}
            for k, question in enumerate(questions)
        ]
        (study / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (study / "mixed.toml").write_text(STUDY + REPORT)
    return study


def test_check_names_a_question_that_is_near_another(mbt, near_study):
    assert mbt("run", "mixed.toml", "--only", "questions", "-q").code == 0

    (near,) = found(mbt)

    assert near == (
        f"contamination: 1 of 3 questions of `{HELD}` are near one of `{TRAINED}`, such as "
        "`v0` is near `t0`"
    )


def test_a_report_notes_shared_questions_below_its_first_table(mbt, near_study):
    stages = ("questions", "base", "scores", "tables")
    only = [part for stage in stages for part in ("--only", stage)]
    done = mbt("run", "mixed.toml", "-q", *only)
    assert done.code == 0, done.err

    first, second = (
        (near_study / f"runs/mixed/tables/files/{name}.md").read_text()
        for name in ("main_results", "data_funnel")
    )

    assert f"- Contamination: 1 of 3 questions of {HELD} are near one of {TRAINED}" in first
    assert "ontamination" not in second


def test_a_sign_makes_two_questions_different(mbt, study):
    for name, question in (("train", "What is 3 + 1?"), ("validation", "What is 3 - 1?")):
        line = json.dumps({"id": "a", "question": question, "answer": "4"})
        (study / f"{name}.jsonl").write_text(line + "\n")
    assert mbt("run", "mixed.toml", "--only", "questions", "-q").code == 0

    assert found(mbt) == []


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
