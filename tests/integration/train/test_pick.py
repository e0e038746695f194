"""A real training on the samples that a score stage's values pick."""

import polars as pl

from tests.integration.train.conftest import STUDY

HEAD, TRAIN = STUDY.split('[[stage]]\nkind = "train"\nname = "sft"\n', 1)
SCORES = """
[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match"]

[[stage]]
kind = "train"
name = "sft"
pick = { scores = "scores", metric = "exact_match", worst = 1, per_question = 1, at_most = 6 }
"""
FULL = "sft/model=tiny/variant=full"


def test_only_what_is_picked_is_trained_on_and_the_card_counts_it(fresh):
    place = fresh(HEAD + SCORES + TRAIN)

    ran = place.run("run", "study.toml", "--only", "base", "--only", "scores", "--only", FULL)

    assert ran.code == 0, ran.out
    assert "6 of 24 samples are picked (worst 1 by `exact_match`)" in ran.out
    trained = pl.read_parquet(place.cell(FULL) / "files/training_set.parquet")
    kept = trained.filter(pl.col("dropped").is_null())
    asked = sorted(trained["question_id"].unique())
    # all are wrong, so the order is that of the sample numbers, then of the questions
    assert kept.select("question_id", "sample").rows() == [(name, 0) for name in asked[:6]]
    assert trained["dropped"].drop_nulls().to_list() == ["not_picked"] * 18
    notes = place.lineage(FULL)["notes"]
    assert notes["pick"] == {"samples": 24, "picked": 6, "by": "worst 1 by `exact_match`"}
    assert notes["funnel"] == {"rows": 24, "picked": 6, "chosen": 6, "trained": 6}

    written = place.run("export", f"runs/loop/{FULL}", "--to", "out", "--write")
    assert written.code == 0, written.out
    card = (place.folder / "out/README.md").read_text()
    assert "6 of 24 samples: worst 1 by `exact_match`" in card
