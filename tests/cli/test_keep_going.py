"""One failure costs what depends on it and nothing else."""

import json
import os

import pytest

STUDY = """
[study]
name = "two"
seed = 1
max_failed_share = 0

[run]
max_attempts = 1

[sampling.plain]
temperature = 0
max_tokens = 16

[models.alive]
backend = { kind = "canned", replies = ["<answer>Oslo</answer>"] }
sampling = "plain"

[models.dead]
backend = { kind = "openai", base_url = "http://127.0.0.1:9/v1" }
sampling = "plain"

[models.judge]
backend = { kind = "canned", replies = ['{"grade": "A"}'] }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 3

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["tiny"], split = ["validation"], model = ["dead", "alive"] }
prompt = "answer"
samples = 1

[[stage]]
kind = "judge"
name = "answers"
rollouts = "base"
matrix = { judge = ["answer_match"] }
judge_model = "judge"

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
verdicts = "answers"
metrics = ["exact_match", "judge_accuracy"]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results"]
"""
DEAD = [
    "base/benchmark=tiny/split=validation/model=dead",
    "answers/benchmark=tiny/split=validation/model=dead/judge=answer_match",
    "scores/benchmark=tiny/split=validation/model=dead",
]
ALIVE = {
    "questions/benchmark=tiny/split=validation",
    *(cell.replace("model=dead", "model=alive") for cell in DEAD),
    "tables",
}


@pytest.fixture
def study(workplace):
    (workplace / "two.toml").write_text(STUDY)
    return workplace


def finished(study):
    return {str(p.parent.relative_to(study / "runs/two")) for p in study.rglob("lineage.json")}


def test_a_run_makes_what_a_dead_model_leaves(mbt, study):
    done = mbt("run", "two.toml", "--keep-going", "-q")

    assert done.code == 1
    assert finished(study) == ALIVE
    assert "3 of 8 cells failed or lack an input:" in done.err
    told = {line.strip().partition(": ")[0].strip("`"): line for line in done.err.splitlines()}
    assert f"reads `{DEAD[0]}`, which failed: " in told[DEAD[1]]
    assert "Traceback" not in done.err
    report = (study / "runs/two/tables/files/main_results.md").read_text()
    assert "1 cell is not run yet and shown as a dash." in report


def test_without_it_a_run_stops_at_the_first_failure(mbt, study):
    assert mbt("run", "two.toml", "-q").code == 1

    assert finished(study) == {"questions/benchmark=tiny/split=validation"}


def test_what_was_left_out_is_made_once_its_input_is_there(mbt, study):
    mbt("run", "two.toml", "--keep-going", "-q")
    text = (study / "two.toml").read_text()
    healed = text.replace(
        'kind = "openai", base_url = "http://127.0.0.1:9/v1"',
        'kind = "canned", replies = ["<answer>Rome</answer>"]',
    )
    (study / "two.toml").write_text(healed)

    done = mbt("run", "two.toml", "--keep-going", "-q", "--replace")

    assert done.code == 0, done.err
    assert {*DEAD} < finished(study)


def test_jobs_make_what_a_dead_model_leaves_and_status_says_why(mbt, study, warm):
    plan = mbt("plan", "two.toml").out
    submitted = warm.run(["submit", "--local", "1"], study, os.environ, text=plan)

    assert submitted.returncode == 1
    assert finished(study) == ALIVE
    cells = {
        cell["address"]: cell for cell in json.loads(mbt("status", "two", "--json").out)["cells"]
    }
    assert {address for address, cell in cells.items() if cell["doing"] == "failed"} == {*DEAD}
    assert "which failed: " in cells[DEAD[2]]["why"]
    assert f"reads `{DEAD[0]}`" in cells[DEAD[1]]["why"]
