"""The trainable steps of a program are trained on, each after what that step was asked."""

import polars as pl

from tests.integration.train.conftest import STUDY

CELL = "sft/model=tiny/variant=full"
STEPS = STUDY.replace("samples = 2\n", 'samples = 2\nprogram = "critique"\n', 1).replace(
    'target = "reply"', 'target = "steps"', 1
)
CANNED = 'kind = "canned", replies = ["It is <answer>Oslo</answer>", "It is <answer>Rome</answer>"]'


def test_answers_and_revisions_are_trained_on_and_criticisms_are_not(fresh):
    place = fresh(STEPS)

    ran = place.run("run", "study.toml", "--only", "base", "--only", CELL)

    assert ran.code == 0, ran.out
    trained = pl.read_parquet(place.cell(CELL) / "files/training_set.parquet")
    base = next(place.cell("base").rglob("files/steps.parquet"))
    steps = pl.read_parquet(base).rename({"step": "trace_id"})
    # 12 questions x 2 samples: an answer, a criticism, a revision
    assert steps.height == 72
    assert trained.height == 48
    assert trained["dropped"].is_null().all()
    key = ["question_id", "sample", "trace_id"]
    assert trained.select(key).sort(key).rows() == (
        steps.filter("trainable").select(key).sort(key).rows()
    )
    assert sorted(trained["trace_id"].unique()) == [0, 2]
    both = trained.join(steps.select(*key, "messages", "reply"), on=key)
    assert both.height == 48
    for row in both.iter_rows(named=True):
        assert row["reply"].strip() in row["completion"]
        last = row["messages"][-1]["content"]
        assert last.strip() in row["prompt"]
        # what came before a revision is in its prompt, and is not trained
        assert row["completion"].count("It is") == 1
    assert place.rows(CELL)["loss"].is_finite().all()


def test_steps_of_rollouts_that_are_left_out_are_left_out(fresh):
    wrong = CANNED.replace("Oslo", "never").replace("Rome", "never")
    place = fresh(
        STEPS.replace(CANNED, wrong).replace(
            'target = "steps"', 'target = "steps"\nkeep = "correct"', 1
        )
    )

    ran = place.run("run", "study.toml", "--only", "base", "--only", CELL)

    assert ran.code == 1, ran.out
    assert "none of 48 rows is trainable (48 x not correct)" in ran.out


def test_a_rollout_without_a_program_has_no_steps(fresh):
    place = fresh(STUDY.replace('target = "reply"', 'target = "steps"', 1))

    ran = place.run("check", "study.toml")

    assert ran.code == 2, ran.out
    assert (
        "`stage.sft.target`: `base/benchmark=tiny/split=train/model=teacher` asks once" in ran.out
    )
