"""Two judge models of one judge in one score stage."""

import json

import polars as pl
import pytest

from tests.conftest import SMALL_STUDY

ONE = 'matrix = { judge = ["answer_match"] }\njudge_model = "judge"'
TWO = 'matrix = { judge = ["answer_match"], judge_model = ["judge", "hard"] }'
HARD = """
[models.hard]
backend = { kind = "canned", replies = ['{"grade": "B"}'] }
sampling = "plain"
"""


@pytest.fixture
def judged_twice(mbt, workplace):
    study = SMALL_STUDY.replace(ONE, TWO).replace('"degeneration"]', '"degeneration", "aes"]')
    assert TWO in study
    (workplace / "study.toml").write_text(study + HARD)
    ran = mbt("run", "study.toml")
    assert ran.code == 0, ran.err
    return workplace


def summaries(workplace) -> pl.DataFrame:
    paths = sorted((workplace / "runs/small/scores").rglob("summary.parquet"))
    return pl.concat([pl.read_parquet(path).with_columns(path=pl.lit(str(path))) for path in paths])


def test_metrics_of_each_judge_model_stand_side_by_side(judged_twice):
    found = summaries(judged_twice).filter(pl.col("path").str.contains("metacognitive"))
    values = dict(found.select("metric", "value").iter_rows())

    # one calls every answer right, the other none
    assert values["judge_accuracy:judge"] == values["answer_rate"] > 0
    assert values["judge_accuracy:hard"] == 0
    assert "judge_accuracy" not in values
    # a metric that needs no judge stands there once
    assert found["metric"].to_list().count("exact_match") == 1
    # the difference is from the baseline by the same judge model
    own = found.filter(pl.col("metric") == "judge_accuracy:judge").row(0, named=True)
    assert own["baseline"] > 0
    assert json.loads(own["settings"])["judge_model"] == "judge"
    assert "aes:judge" in values


def test_tables_and_compare_show_both(judged_twice, mbt):
    table = next((judged_twice / "runs/small/tables").rglob("main_results.md"))
    cells = "runs/small/scores/**/prompt={}"
    ran = mbt("compare", cells.format("answer"), cells.format("metacognitive"), "--json")

    text = table.read_text()
    assert "toy judge's accuracy (judge)" in text
    assert "toy judge's accuracy (hard)" in text
    assert ran.code == 0, ran.err
    metrics = {row["metric"] for row in json.loads(ran.out)["metrics"]}
    assert {"judge_accuracy:judge", "judge_accuracy:hard", "exact_match"} <= metrics


def test_one_model_under_two_names_of_a_judge_is_refused(mbt, workplace):
    study = SMALL_STUDY.replace('judge = ["answer_match"]', 'judge = ["answer_match", "strict"]')
    (workplace / "study.toml").write_text(f'{study}\n[judges.strict]\nkind = "answer_match"\n')

    ran = mbt("run", "study.toml")

    assert ran.code == 1
    assert "are both verdicts of `answer_match` by the same model" in ran.err
