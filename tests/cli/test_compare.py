"""`mbt compare`: paired differences of two cells, from the rows behind them."""

import json

SECOND_JUDGE = """
[models.hard]
backend = { kind = "canned", replies = ['{"grade": "B"}'] }
sampling = "plain"

[[stage]]
kind = "judge"
name = "strict"
rollouts = "base"
matrix = { judge = ["answer_match"] }
judge_model = "hard"
"""
SCORES = "runs/small/scores/benchmark=tiny/split=validation/model=parrot/prompt={}"


def test_two_score_cells_are_compared_on_their_common_questions(mbt):
    mbt("run", "study.toml")

    ran = mbt("compare", SCORES.format("answer"), SCORES.format("metacognitive"), "--json")

    assert ran.code == 0, ran.err
    metrics = {row["metric"]: row for row in json.loads(ran.out)["metrics"]}
    # the parrot says the same under both prompts
    assert metrics["answer_rate"]["questions"] == 6
    assert metrics["answer_rate"]["difference"] == 0
    assert metrics["answer_rate"]["p"] == 1


def test_globs_pair_cells_that_are_equal_on_every_shared_axis(mbt):
    mbt("run", "study.toml")

    ran = mbt(
        "compare", "runs/small/base/**/prompt=answer", "runs/small/base/**/prompt=metacognitive"
    )

    assert ran.code == 0, ran.err
    assert "exact match (%)" in ran.out


def test_cells_of_other_kinds_are_refused(mbt):
    mbt("run", "study.toml")

    ran = mbt("compare", "runs/small/questions", "runs/small/questions")

    assert ran.code == 2
    assert "questions cell" in ran.err


def test_two_judges_over_the_same_rollouts_give_kappa_and_a_confusion_table(mbt, workplace):
    with (workplace / "study.toml").open("a") as study:
        study.write(SECOND_JUDGE)
    mbt("run", "study.toml")

    told = mbt("compare", "runs/small/answers/**/prompt=answer", "runs/small/strict", "--json")
    shown = mbt("compare", "runs/small/answers/**/prompt=answer", "runs/small/strict")

    assert told.code == 0, told.err
    found = json.loads(told.out)
    counts = {(row["first"], row["second"]): row["count"] for row in found["confusion"]}
    # 12 rollouts; what has no answer is wrong by definition, for both judges
    assert found["column"] == "grade"
    assert counts.get(("A", "A"), 0) == 0
    assert counts[("A", "B")] + counts.get(("B", "B"), 0) == found["read"] == 12
    assert found["same"] == counts.get(("B", "B"), 0)
    assert "Cohen's kappa" in shown.out
