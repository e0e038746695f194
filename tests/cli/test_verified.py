"""Verdicts that a rule gives: the judge `verifier`, and the scores that read it."""

import json
from functools import partial

import polars as pl
import pytest

from tests.cli.verified_study import RULE, write_study


@pytest.fixture
def study(workplace):
    """Write the study; called again, with other numbers."""
    write_study(workplace)
    return partial(write_study, workplace)


def verdicts(workplace, judge):
    (path,) = (workplace / "runs/v/checked").rglob(f"judge={judge}/rows.parquet")
    return pl.read_parquet(path, hive_partitioning=False).sort("question_id", "sample")


def summary(workplace):
    (path,) = (workplace / "runs/v/score").rglob("summary.parquet")
    frame = pl.read_parquet(path, hive_partitioning=False)
    return dict(zip(frame["metric"], frame["value"], strict=True))


def test_verdicts_of_rules_become_scores(mbt, workplace, study):
    ran = mbt("run", "v.toml")

    assert ran.code == 0, ran.err
    own = verdicts(workplace, "verifier")
    assert own["value"].to_list() == [1.0, 0.0, 0.0, 0.0] * 2
    assert own["parts"].list.len().to_list() == [0] * 8
    assert own["messages"].list.len().sum() == 0
    strict = verdicts(workplace, "strict")
    assert strict["passed"].to_list() == [True, False, False, True] * 2
    assert strict["passed_loose"].to_list() == [True, True, False, True] * 2
    assert strict["parts"][1].to_list()[1] == {
        "name": "case:small",
        "passed": False,
        "passed_loose": True,
        "detail": "wanted no capitals",
    }
    assert strict["output"].to_list() == ["Add."] * 8
    found = summary(workplace)
    assert found["verified:verifier"] == pytest.approx(0.25)
    assert found["verified:strict"] == pytest.approx(0.5)
    assert found["verified_loose:strict"] == pytest.approx(0.75)
    # of four replies with two rules each: 2, 1, 0 and 2 are followed
    assert found["instruction_accuracy:strict"] == pytest.approx(5 / 8)
    assert found["instruction_accuracy_loose:strict"] == pytest.approx(6 / 8)
    assert found["verified_pass@2:strict"] == pytest.approx(1 - 1 / 6)
    assert found["exact_match"] == pytest.approx(0.25)
    assert list(found).count("verified:strict") == 1


def test_more_samples_check_only_the_new_ones(mbt, workplace, study):
    study(samples=2)
    assert mbt("run", "v.toml").code == 0
    assert (workplace / "checks.log").read_text().count("check") == 4
    study(samples=4)
    ran = mbt("run", "v.toml")
    assert ran.code == 0, ran.err
    assert (workplace / "checks.log").read_text().count("check") == 8
    assert verdicts(workplace, "strict")["passed"].to_list() == [True, False, False, True] * 2


def test_a_check_without_a_verdict_fails_its_row_and_is_made_again(mbt, workplace, study):
    (workplace / "sick").touch()
    ran = mbt("run", "v.toml")
    assert ran.code == 1
    assert "no_verdict: the sandbox died" in ran.err
    (workplace / "sick").unlink()
    before = (workplace / "checks.log").read_text().count("check")
    ran = mbt("run", "v.toml")
    assert ran.code == 0, ran.err
    assert (workplace / "checks.log").read_text().count("check") == before + 2
    assert summary(workplace)["verified:strict"] == pytest.approx(0.5)


def test_a_failed_check_is_never_wrong(mbt, workplace, study):
    study(allowed=0.5)
    (workplace / "sick").touch()
    ran = mbt("run", "v.toml")
    assert ran.code == 0, ran.err
    strict = verdicts(workplace, "strict")
    assert strict["failure"].to_list() == [None, None, None, "no_verdict: the sandbox died"] * 2
    assert summary(workplace)["verified:strict"] == pytest.approx(1 / 3)


def test_checks_are_sharded(mbt, workplace, study):
    only = ("--only", "checked/judge=strict")
    assert mbt("run", "v.toml", "--only", "rollout", "--only", "questions").code == 0
    assert mbt("run", "v.toml", *only, "--shard", "1/2").code == 0
    assert (workplace / "checks.log").read_text().count("check") == 4
    assert mbt("run", "v.toml", *only, "--shard", "2/2").code == 0
    ran = mbt("run", "v.toml", *only)
    assert ran.code == 0, ran.err
    assert (workplace / "checks.log").read_text().count("check") == 8
    assert verdicts(workplace, "strict")["passed"].to_list() == [True, False, False, True] * 2


def test_a_rule_of_another_version_makes_verdicts_stale(mbt, workplace, study):
    assert mbt("run", "v.toml").code == 0
    (workplace / "rule.py").write_text(RULE.replace("and bool(reply)\n", "\n"))
    ran = mbt("run", "v.toml")
    assert ran.code == 1
    assert "checked/benchmark=sums/split=test/model=m/judge=strict" in ran.err
    assert "judge=verifier" not in ran.err


def test_a_judge_that_asks_needs_a_model(mbt, workplace, study):
    text = (workplace / "v.toml").read_text().replace('["verifier", "strict"]', '"answer_match"')
    (workplace / "v.toml").write_text(text)
    ran = mbt("check", "v.toml")
    assert ran.code == 2
    assert "`stage.checked.judge_model`: is required: the judge `answer_match` asks a model" in (
        ran.err
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('verdicts = "checked"\n', "", "`verified` needs verdicts of the judge `verifier`"),
        (
            'judge = "strict"',
            'judge = "strickt"',
            "no judge `strickt` in `checked`; did you mean `strict`?",
        ),
    ],
)
def test_a_metric_needs_a_judge_that_has_judged(mbt, workplace, study, old, new, message):
    text = (workplace / "v.toml").read_text()
    (workplace / "v.toml").write_text(text.replace(old, new))
    ran = mbt("check", "v.toml")
    assert ran.code == 2
    assert message in ran.err


def test_checks_of_many_rows_become_an_array_without_tokens(mbt, workplace, study):
    assert mbt("run", "v.toml", "--only", "questions").code == 0
    ran = mbt("plan", "v.toml", "--max-rows", "3")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    jobs = {job["id"]: job for job in plan["jobs"]}
    assert jobs["checked-1"]["shards"] == 3
    assert jobs["checked-1"]["resources"]["gpus"] == 0
    cells = {cell["address"]: cell for cell in plan["cells"]}
    checked = cells["checked/benchmark=sums/split=test/model=m/judge=strict"]
    assert (checked["rows"], checked["tokens"]) == (8, None)


def test_checks_are_no_calls_of_a_model(mbt, workplace, study):
    ran = mbt("run", "v.toml")
    assert "8 model calls" in ran.err + ran.out


LETTERED = '''

from mbt_cli.benchmarks.gsm8k import GSM8K


class Lettered(GSM8K):
    """Sums whose replies are right by the rule above, which runs programs."""

    kind: Literal["lettered"] = "lettered"
    verifier: ClassVar[Verifier] = Letters()
'''


def test_pages_and_lists_of_traces_check_nothing_themselves(mbt, workplace, study):
    with (workplace / "rule.py").open("a") as file:
        file.write(LETTERED)
    text = (workplace / "v.toml").read_text().replace('kind = "gsm8k"', 'kind = "lettered"')
    (workplace / "v.toml").write_text(text)
    assert mbt("run", "v.toml", "--only", "rollout", "--only", "checked/judge=strict").code == 0
    checks = (workplace / "checks.log").read_text()

    # a score and a page without verdicts, then the rollouts with them in a terminal
    bare = text.replace('verdicts = "checked"\n', "").partition("metrics = [")[0]
    bare += 'metrics = ["tokens"]\n\n[[stage]]\nkind = "report"\ntables = ["main_results"]\n'
    (workplace / "v.toml").write_text(bare)
    ran = mbt("run", "v.toml", "--only", "score", "--only", "report")
    seen = mbt("view", "--terminal", "runs/v/rollout")

    assert ran.code == 0, ran.err
    assert (workplace / "checks.log").read_text() == checks
    assert "passed loosely case:small: wanted no capitals" in seen.out
    index = (workplace / "runs/v/report/files/report/data/index.js").read_text()
    assert '"signs":[0,0,256,256,0,0,256,256]' in index  # 256: no answer; none is matched


def test_the_benchmarks_own_verifier_decides_what_a_page_calls_right(mbt, workplace, study):
    assert mbt("run", "v.toml", "-q").code == 0

    index = (workplace / "runs/v/report/files/report/data/index.js").read_text()

    # 4: has a value, 8: is right; `strict`, whose name comes first, passes the last one too
    assert '"signs":[12,4,260,260,12,4,260,260]' in index
