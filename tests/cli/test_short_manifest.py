"""A short manifest: what it leaves to mbt, and that its study runs to a table."""

import orjson

from mbt_cli.store.lineage import read_lineage

SHORT = """
[study]
name = "short"

[models.parrot]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>"] }
sampling = { temperature = 0, max_tokens = 32 }

[benchmarks.mine]
kind = "question_answer"
files = { test = "mine.jsonl" }

[[stage]]
kind = "rollout"
matrix = { benchmark = "mine", model = "parrot" }
prompt = "question"
[[stage]]
kind = "score"
[[stage]]
kind = "report"
"""
QUESTIONS = [
    {"question": "Capital of Norway?", "answer": "Oslo"},
    {"question": "Capital of Peru?", "answer": "Lima"},
]


def write(workplace):
    (workplace / "short.toml").write_text(SHORT)
    (workplace / "mine.jsonl").write_bytes(b"\n".join(map(orjson.dumps, QUESTIONS)))


def test_a_short_manifest_runs_to_a_table(mbt, workplace):
    write(workplace)

    ran = mbt("run", "short.toml")

    assert ran.code == 0, ran.err
    assert "exact match" in ran.out
    cell = workplace / "runs/short/rollout/benchmark=mine/split=test/model=parrot"
    lineage = read_lineage(cell)
    assert lineage is not None
    assert lineage.spec["samples"] == 1
    assert lineage.spec["seed"] == 0


def test_show_lists_what_a_manifest_leaves_to_mbt(mbt, workplace):
    write(workplace)

    shown = mbt("show", "short.toml").out

    for key, value in {
        "study.seed": "0",
        "study.max_failed_share": "0.05",
        "stage.rollout.name": "rollout",
        "stage.rollout.matrix.split": '["test"]',
        "stage.rollout.samples": "1",
        "stage.score.rollouts": '["rollout"]',
        "stage.score.metrics": '["exact_match","f1_score","answer_rate","tokens"]',
        "stage.report.scores": '["score"]',
        "stage.report.tables": '["main_results"]',
    }.items():
        (line,) = [line for line in shown.splitlines() if f" {key} " in line]
        assert f" {value} " in line


def test_two_splits_are_not_chosen_from(mbt, workplace):
    write(workplace)
    text = SHORT.replace("{ test =", '{ train = "mine.jsonl", test =')
    (workplace / "short.toml").write_text(text)

    checked = mbt("check", "short.toml")

    assert checked.code == 2
    assert "has no axis `split`" in checked.err


def test_a_manifest_that_says_everything_leaves_nothing(mbt, workplace):
    assert "leaves to mbt" not in mbt("show", "study.toml").out
