"""`mbt compare`: paired differences of two cells, from the rows behind them."""

import json

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
    assert "exact_match" in ran.out


def test_cells_of_other_kinds_are_refused(mbt):
    mbt("run", "study.toml")

    ran = mbt("compare", "runs/small/questions", "runs/small/questions")

    assert ran.code == 2
    assert "questions cell" in ran.err
