"""`mbt export --jsonl`: completions, results and numbers of score cells as JSON lines."""

import json
import os
import shutil

import pytest

from tests.cli.verified_study import TEXTS, write_study

CELL = "benchmark=sums/split=test/model=m"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, warm):
    """A finished study."""
    folder = tmp_path_factory.mktemp("finished")
    write_study(folder)
    done = warm.run(["run", "v.toml", "-q"], folder, os.environ)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def made(workplace, finished):
    shutil.copytree(finished, workplace, dirs_exist_ok=True)
    return workplace


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_score_cell_is_a_folder_of_completions_results_and_numbers(mbt, made):
    shown = mbt("export", "runs/v", "--jsonl", "--to", "out")
    assert shown.code == 0, shown.err
    assert "verified:strict 50.0 %" in shown.out
    assert "nothing is written" in shown.out
    assert not (made / "out").exists()

    written = mbt("export", "runs/v", "--jsonl", "--to", "out", "--write")

    assert written.code == 0, written.err
    folder = made / "out/score" / CELL
    assert sorted(path.name for path in folder.iterdir()) == [
        "completions.jsonl",
        "lineage.json",
        "pass_at_k.json",
        "results.jsonl",
        "summary.json",
        "verification_results.jsonl",
    ]
    completions = lines(folder / "completions.jsonl")
    assert [row["completion"] for row in completions[:4]] == [
        "it is <answer>1</answer>",
        "The <answer>7</answer>",
        "",
        "dead 1",
    ]
    first = completions[0]
    assert "What is 0 + 1?" in first["prompt"][0]["content"]
    assert (first["sample"], first["finish_reason"], first["completion_tokens"]) == (0, "stop", 3)
    assert "answer" not in first
    second = lines(folder / "results.jsonl")[1]
    assert (second["answer"], second["gold_answer"]) == ("7", "1")
    assert second["verdicts"]["strict"] == {
        "value": 0.0,
        "passed": False,
        "passed_loose": True,
        "parts": [
            {"name": "form:digit", "passed": True, "passed_loose": True, "detail": ""},
            {
                "name": "case:small",
                "passed": False,
                "passed_loose": True,
                "detail": "wanted no capitals",
            },
        ],
        "output": "Add.",
        "failure": None,
    }
    by_prompt = lines(folder / "verification_results.jsonl")
    assert [row["gold_answer"] for row in by_prompt] == ["1", "2"]
    assert by_prompt[1]["completions"][0] == "it is <answer>2</answer>"
    assert by_prompt[1]["scores"] == {
        "strict": [1.0, 0.0, 0.0, 1.0],
        "verifier": [1.0, 0.0, 0.0, 0.0],
    }


def test_numbers_have_the_names_that_scripts_read(made, mbt):
    assert mbt("export", "runs/v/score", "--jsonl", "--to", "out", "--write").code == 0

    summary = json.loads((made / "out" / CELL / "summary.json").read_text())

    assert [summary[name] for name in ("model", "benchmark", "split")] == ["m", "sums", "test"]
    assert [summary[n] for n in ("prompts", "samples", "completions", "failed")] == [2, 4, 8, 0]
    # one of four replies is right; two follow the rules, three once formatting is removed; of the
    # eight rules of a question's replies, five are followed, and six loosely
    assert summary["accuracy"] == pytest.approx(1 / 4)
    assert summary["accuracy:strict"] == pytest.approx(2 / 4)
    assert summary["prompt_level_strict_acc:strict"] == pytest.approx(2 / 4)
    assert summary["prompt_level_loose_acc:strict"] == pytest.approx(3 / 4)
    assert summary["inst_level_strict_acc:strict"] == pytest.approx(5 / 8)
    assert summary["inst_level_loose_acc:strict"] == pytest.approx(6 / 8)
    assert "prompt_level_strict_acc" not in summary
    assert summary["metrics"]["verified:strict"] == {
        "value": pytest.approx(0.5),
        "low": pytest.approx(0.215, abs=1e-3),  # Wilson's interval of 4 in 8
        "high": pytest.approx(0.785, abs=1e-3),
        "n": 2,
        "failed": 0,
        "unit": "share",
    }
    # with one right sample in four, two draws have it with 1 - (3 / 4) (2 / 3)
    at_k = json.loads((made / "out" / CELL / "pass_at_k.json").read_text())
    assert [at_k[f"pass@{k}"] for k in (1, 2, 4)] == pytest.approx([1 / 4, 1 / 2, 1])
    assert [at_k[f"pass@{k}:strict"] for k in (1, 2, 4)] == pytest.approx([1 / 2, 5 / 6, 1])
    assert summary["pass@2:strict"] == pytest.approx(5 / 6)


def test_one_sample_has_no_files_of_several_and_one_cell_no_folders(mbt, workplace):
    write_study(workplace, samples=1)
    text = (workplace / "v.toml").read_text().replace("k = [1, 2]", "k = [1]")
    (workplace / "v.toml").write_text(text)
    assert mbt("run", "v.toml", "-q").code == 0

    written = mbt("export", f"runs/v/score/{CELL}", "--jsonl", "--to", "out", "--write")

    assert written.code == 0, written.err
    assert sorted(path.name for path in (workplace / "out").iterdir()) == [
        "README.md",
        "completions.jsonl",
        "lineage.json",
        "results.jsonl",
        "summary.json",
    ]


def test_secrets_of_this_machine_are_masked(mbt, workplace):
    write_study(workplace, texts=(*TEXTS[:3], "my key is 9f8e7d6c5b4a and dead 1"))
    assert mbt("run", "v.toml", "-q").code == 0

    ran = mbt(
        "export", "runs/v/score", "--jsonl", "--to", "out", "--write", TEAM_TOKEN="9f8e7d6c5b4a"
    )

    assert ran.code == 0, ran.err
    files = [path.read_text() for path in (workplace / "out").rglob("*") if path.is_file()]
    assert not any("9f8e7d6c5b4a" in text for text in files)
    completions = lines(workplace / "out" / CELL / "completions.jsonl")
    assert completions[3]["completion"] == "my key is [secret] and dead 1"
    assert completions[0]["completion"] == "it is <answer>1</answer>"


def test_what_is_not_a_score_and_a_folder_that_is_not_empty_are_refused(mbt, made):
    for stage in ("rollout", f"checked/{CELL}"):
        refused = mbt("export", f"runs/v/{stage}", "--jsonl", "--to", "out", "--write")
        assert refused.code == 2
        assert "has no score cell, only" in refused.err
        assert "hint: name the folder of a score stage: mbt export runs/v/score --jsonl" in (
            refused.err
        )
    logged = mbt("export", "runs/v/score", "--jsonl", "--to", "wandb:demo")
    assert logged.code == 2
    assert "`--jsonl` writes files" in logged.err
    (made / "out").mkdir()
    (made / "out/mine").write_text("x")

    refused = mbt("export", "runs/v/score", "--jsonl", "--to", "out", "--write")

    assert refused.code == 2
    assert "`out` is not empty" in refused.err
    assert [path.name for path in (made / "out").iterdir()] == ["mine"]


def test_results_never_stand_beside_numbers_of_other_replies(mbt, workplace):
    for samples, only in ((2, ()), (4, ("--only", "rollout"))):
        write_study(workplace, samples=samples)
        assert mbt("run", "v.toml", "-q", *only).code == 0

    refused = mbt("export", "runs/v/score", "--jsonl", "--to", "out", "--write")

    assert refused.code == 2
    assert f"reads `rollout/{CELL}`, which has changed since" in refused.err
    assert not (workplace / "out").exists()
