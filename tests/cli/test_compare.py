"""`mbt compare`: paired differences of two cells, from the rows behind them."""

import json

import polars as pl
import pytest

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
TWO_MODELS = """
[study]
name = "two"
seed = 7
max_failed_share = 0

[sampling.plain]
temperature = 0.6
max_tokens = 64

[models]
a = { backend = { kind = "canned", replies = ["<answer>Oslo</answer>"] }, sampling = "plain" }
b = { backend = { kind = "canned", replies = ["<answer>Rome</answer>", "no"] }, sampling = "plain" }

[benchmarks.mine]
kind = "question_answer"
files = { validation = "mine.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["mine"], split = ["validation"], model = ["a", "b"] }
prompt = "answer"
samples = 1

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match", "f1_score", "tokens"]
baseline = { model = "a" }

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["paired_differences"]
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

    ran = mbt("compare", "runs/small/questions", "runs/small/scores/**/prompt=answer")

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
    # one judge calls everything wrong: no agreement beyond chance, which has no spread
    assert abs(found["kappa"]) < 1e-9
    assert (found["low"], found["weights"], found["questions"]) == (None, "none", 6)
    assert f"0.000 (no interval: {found['missing']})" in " ".join(shown.out.split())


def test_cells_are_tested_for_equivalence_in_the_unit_shown(mbt):
    mbt("run", "study.toml")
    cells = [SCORES.format(prompt) for prompt in ("answer", "metacognitive")]

    told = mbt("compare", *cells, "--equivalent", "60", "--equivalent", "tokens=0.5", "--json")
    shown = mbt("compare", *cells, "--equivalent", "answer_rate=60", COLUMNS="100")

    assert told.code == 0, told.err
    metrics = {row["metric"]: row for row in json.loads(told.out)["metrics"]}
    rate = metrics["answer_rate"]
    # points are hundredths; both cells have the same replies, two to each of six questions
    assert rate["margin"] == 0.6
    assert -0.6 < rate["low_90"] < 0 < rate["high_90"] < 0.6
    assert rate["low"] < rate["low_90"]
    assert rate["p_equivalent"] <= rate["p_equivalent_holm"] < 0.05
    assert metrics["tokens"]["margin"] == 0.5
    assert "within 60" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "`0` is not a number above 0"),
        ("2 points", "`2 points` is not a number above 0"),
        ("inf", "`inf` is not a number above 0"),
        ("speed=2", "no metric `speed`"),
    ],
)
def test_a_margin_that_cannot_be_tested_is_refused(mbt, text, message):
    mbt("run", "study.toml", "--only", "base")
    cells = [f"runs/small/base/**/prompt={prompt}" for prompt in ("answer", "metacognitive")]

    ran = mbt("compare", *cells, "--equivalent", text)

    assert ran.code == 2
    assert message in ran.err


def test_a_report_and_compare_say_the_same_of_two_cells(mbt, workplace):
    (workplace / "mine.jsonl").write_text(
        "".join(
            json.dumps({"id": f"q{n}", "question": f"Question {n}?", "answer": answer}) + "\n"
            for n, answer in enumerate(["Oslo"] * 9 + ["Rome"] * 15)
        )
    )
    (workplace / "two.toml").write_text(TWO_MODELS)
    assert mbt("run", "two.toml", "-q").code == 0
    cell = "runs/two/scores/**/model={}"

    ran = mbt("compare", cell.format("b"), cell.format("a"), "--json")
    compared = {row["metric"]: row for row in json.loads(ran.out)["metrics"]}
    table = pl.read_parquet(workplace / "runs/two/tables/files/paired_differences.parquet")
    (row,) = table.filter(pl.col("model") == "b").to_dicts()

    for metric in ("exact_match", "f1_score", "tokens"):
        told = compared[metric]
        assert row[metric] == pytest.approx(told["difference"])
        assert row[f"{metric}_low"] == pytest.approx(told["low"])
        assert row[f"{metric}_high"] == pytest.approx(told["high"])
        assert row[f"{metric}_p"] == pytest.approx(told["p"])


def test_the_table_says_the_sign_of_a_difference(mbt):
    mbt("run", "study.toml")

    ran = mbt("compare", SCORES.format("answer"), SCORES.format("metacognitive"), COLUMNS="120")

    assert "first - second" in ran.out
    assert "better 1st : 2nd" in ran.out
    assert "first minus second" in ran.out


def test_pairs_of_cells_are_pooled_over_their_questions(mbt, workplace):
    """Two benchmarks of 3 and 2 questions: the means are those over all five."""
    lines = [
        {"id": f"q{n}", "question": f"Capital {n}?", "answer": "Oslo" if n % 2 else "Rome"}
        for n in range(5)
    ]
    for name, own in (("one", lines[:3]), ("two", lines[3:])):
        text = "".join(json.dumps(line) + "\n" for line in own)
        (workplace / f"{name}.jsonl").write_text(text)
    tables = "".join(
        f'[benchmarks.{name}]\nkind = "question_answer"\n'
        f'files = {{ validation = "{name}.jsonl" }}\n'
        for name in ("one", "two")
    )
    text = TWO_MODELS.replace('["mine"]', '["one", "two"]')
    head, _, rest = text.partition("[benchmarks.mine]")
    stages = rest.partition("[[stage]]")[2]
    (workplace / "two.toml").write_text(f"{head}{tables}\n[[stage]]{stages}")
    assert mbt("run", "two.toml").code == 0

    patterns = [f"runs/two/scores/**/model={model}" for model in "ab"]
    shown = mbt("compare", *patterns, "--pool")
    found = json.loads(mbt("compare", *patterns, "--pool", "--json").out)

    assert shown.code == 0, shown.err
    assert "pooled over 2 pairs of cells" in shown.out
    assert len(found["pairs"]) == 2
    row = next(one for one in found["metrics"] if one["metric"] == "exact_match")
    assert (row["questions"], row["clusters"]) == (5, None)
    assert row["first"] == 0.4  # q1 and q3 are Oslo
    alone = [json.loads(line) for line in mbt("compare", *patterns, "--json").out.splitlines()]
    assert [one["metrics"][0]["questions"] for one in alone] == [3, 2]
