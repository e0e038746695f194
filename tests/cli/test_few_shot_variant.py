"""Few-shot: picked examples become a prompt, without weights and without torch."""

import json

import pytest

from tests.cli.test_curriculum import RIGHT, STUDY, ids

__all__ = ["ids"]

FEW = """
[[stage]]
kind = "train"
name = "few"
preset = "few_shot"
matrix = { model = "tiny" }
data = { stage = "base", where = { model = "tiny" } }
target = "reply"
prompt = "answer"
pick = { scores = "scores", metric = "exact_match", best = 0.5, per_question = 1 }
recipe = { shots = 2 }
"""
ASKED = """
[[stage]]
kind = "rollout"
name = "after"
checkpoints = "few"
matrix = { benchmark = "tiny", split = "train" }
prompt = "answer"

[[stage]]
kind = "score"
name = "changed"
rollouts = "after"
metrics = ["exact_match"]
"""
FEW_CELL = "runs/made/few/model=tiny"
AFTER = "runs/made/after/benchmark=tiny/split=train/model=tiny"


def shown(workplace):
    made = json.loads((workplace / FEW_CELL / "files/few_shot.json").read_text())
    return [(one["question_id"], one["turns"][-1]["content"]) for one in made["examples"]]


def test_examples_are_right_replies_that_stand_before_each_question(mbt, workplace, ids):
    (workplace / "study.toml").write_text(STUDY + FEW + ASKED)

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    assert "4 of 20 samples are picked" in ran.err
    # those with right replies; one of them is to spare for questions that are examples
    solved = {ids[n] for n, right in enumerate(RIGHT) if right}
    found = shown(workplace)
    assert len(found) == 3
    assert {name for name, _ in found} < solved
    assert all("never" not in reply for _, reply in found)
    notes = json.loads((workplace / FEW_CELL / "lineage.json").read_text())["notes"]
    assert [one["question_id"] for one in notes["training"]["shown"]] == [n for n, _ in found[:2]]
    assert notes["funnel"] == {"rows": 20, "picked": 4, "chosen": 4, "shown": 2}

    after = json.loads((workplace / AFTER / "lineage.json").read_text())
    assert "few/model=tiny" in after["inputs"]
    compared = mbt("compare", "runs/made/changed", "runs/made/scores")
    assert compared.code == 0, compared.err


def test_a_question_sees_two_others_before_it(mbt, workplace, ids):
    (workplace / "study.toml").write_text(STUDY + FEW + ASKED)
    assert mbt("run", "study.toml", "--only", "few").code == 0
    named = [name for name, _ in shown(workplace)]

    planned = mbt("rollout", "study.toml", "--dry-run", "--json", "--only", "after")

    assert planned.code == 0, planned.err
    cell = next(one for one in json.loads(planned.out) if one["address"].startswith("after/"))
    turns = cell["first_prompt"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2 + ["user"]
    asked = {turn["content"] for turn in turns if turn["role"] == "user"}
    assert len(asked) == 3  # the first question, and two others
    replies = dict(shown(workplace))
    expected = [replies[name] for name in named if name != ids[0]][:2]
    assert [turn["content"] for turn in turns[1::2]] == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('recipe = { shots = 2, order = "best" }', "`stage.few.recipe.order`: `best`"),
        ("recipe = { shots = 0 }", "`stage.few.recipe.shots`"),
        ('recipe = { tuning = "lora" }', "`stage.few.recipe.tuning`: unknown key"),
        ("recipe = { shots = 2 }\nlora = { r = 8 }", "`few_shot` trains no weights: leave it out"),
        ('recipe = { system = "Look" }', "has other placeholders than `{{ examples }}`"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(mbt, workplace, more, message):
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(STUDY + FEW.replace("recipe = { shots = 2 }", more))

    ran = mbt("check", "study.toml")

    assert ran.code == 2, ran.err
    assert message in ran.err


def test_a_best_first_order_needs_values(mbt, workplace):
    (workplace / "replies.jsonl").write_text("")
    text = FEW.replace("best = 0.5", "worst = 0.5").replace("shots = 2", 'order = "best_last"')
    (workplace / "study.toml").write_text(STUDY + text)

    ran = mbt("check", "study.toml")

    assert ran.code == 2, ran.err
    assert "`stage.few.recipe.order`: follows the values of what is picked" in ran.err


def test_plain_text_has_no_turns_for_examples(mbt, workplace):
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(
        STUDY + FEW + ASKED.replace('prompt = "answer"', 'prompt = "completion"')
    )

    ran = mbt("check", "study.toml")

    assert ran.code == 2, ran.err
    assert "`stage.after.prompt`: `few` makes examples, and no weights: they need turns" in ran.err


def test_a_study_without_training_needs_no_torch_and_no_time(mbt, workplace):
    (workplace / "replies.jsonl").write_text("")
    (workplace / "study.toml").write_text(STUDY + FEW + ASKED)

    planned = mbt("plan", "study.toml", "--json")

    assert planned.code == 0, planned.err
    (one,) = json.loads(planned.out)["trainings"]
    assert one["hours"] == 0
    assert one["hours_from"] == "no weights are trained: examples become a prompt"
