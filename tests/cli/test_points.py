"""Olympiads from the shipped manifest to its tables, on a server that proves and grades."""

import csv
import json
import shutil

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.conftest import REPOSITORY

IMO = str(REPOSITORY / "manifests/imo.toml")
DATA = REPOSITORY / "tests/unit/data"
FILES = {
    "imo_answer.csv": "answerbench_v2.csv",
    "imo_proof.csv": "proofbench_v2.csv",
    "imo_grading.csv": "gradingbench.csv",
}


class Olympiad(ChatServer):
    """Proves as a prover does, and grades by what the proof says."""

    def reply_to(self, body):
        system, asked = body["messages"][0]["content"], body["messages"][-1]["content"]
        if "You compare a final answer" in system:
            return f"<verdict>{'yes' if '1 + 1' in asked else 'no'}</verdict>"
        if "marking scheme" in system:
            return '{"points": 5, "items": [{"name": "Names reflexivity", "points": 5, "max": 7}]}'
        if "You grade proofs" in system:
            assert "Self Evaluation" not in asked
            assert "deserves" not in asked
            assert "Guidelines" in asked
            if "even" in asked:  # the first problem
                return "<think><points>1 out of 7</points></think>\n<points>7 out of 7</points>"
            return "Nearly. <points>5 out of 7</points>"  # not among 0, 1, 6 and 7
        if "Reason step by step" in asked:
            return "So it is \\boxed{2}."
        return "## Solution\nBy symmetry.\n## Self Evaluation\nIt deserves \\boxed{1}"


@pytest.fixture
def olympiad(workplace):
    """A folder with small files in the official layouts, and settings that name the server."""
    (workplace / "imo").mkdir()
    for own, official in FILES.items():
        shutil.copy(DATA / own, workplace / "imo" / official)
    with Olympiad() as server:
        stub = f'{{ kind = "openai", base_url = "{server.base_url}" }}'
        settings = [
            f"models.prover-v1.backend={stub}",
            f"models.judge-a.backend={stub}",
            "models.prover-v1.sampling={ temperature = 0.6, max_tokens = 64 }",
            "models.judge-a.sampling={ temperature = 0, max_tokens = 64 }",
            'groups.provers=["prover-v1"]',
            'groups.judges=["judge-a"]',
            'groups.programs=["single"]',
            "study.max_failed_share=0.7",
        ]
        yield workplace, [word for one in settings for word in ("--set", one)], server


def table(folder, stage, name):
    path = folder / f"runs/imo/{stage}/files/{name}.csv"
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_shipped_manifest_runs_from_inference_to_tables(mbt, olympiad):
    folder, settings, server = olympiad

    ran = mbt("run", IMO, *settings)

    assert ran.code == 0, ran.err
    graded = "runs/imo/proofs-graded/benchmark=imo_proof/split=test/model=prover-v1"
    (path,) = (folder / graded).rglob("judge_model=judge-a/program=single/rows.parquet")
    rows = pl.read_parquet(path, hive_partitioning=False).sort("question_id")
    assert rows["points"].to_list() == [7.0, None]
    assert rows["failure"][1].startswith("unreadable_verdict: 5 points")
    (line,) = table(folder, "proofs-tables", "main_results")
    assert line["points"] == "7.00"
    assert line["points_at_least_6"] == "100.0"
    assert line["points_unread"] == "50.0"
    levels = table(folder, "proofs-tables", "difficulty_level")
    assert [(one["metadata.level"], one["points"]) for one in levels] == [
        ("IMO-hard", ""),
        ("pre-IMO", "7.00"),
    ]
    (answers,) = table(folder, "answers-tables", "main_results")
    assert float(answers["math_match"]) == pytest.approx(100 / 3, abs=0.1)
    (beside,) = table(folder, "given-tables", "judge_agreement")
    # the first problem's gradings: 7 for 0 and 7 for 7; that of the second is unread
    assert (beside["error"], beside["bias"], beside["same"]) == ("3.50", "3.50", "50.0")
    assert beside["unread"] == "33.3"
    # proofs that humans graded are asked of nobody
    assert sum("By symmetry if" in key for key in server.asked) == 1
    again = mbt("run", IMO, *settings)
    assert "0 model calls" in again.out + again.err


def test_an_agent_of_the_manifest_alone(mbt, olympiad):
    folder, settings, _ = olympiad
    agents = ["--set", 'groups.programs=["single", "refine"]']

    ran = mbt("run", IMO, *settings, *agents, "--only", "proofs/program=refine")

    assert ran.code == 0, ran.err
    (path,) = (folder / "runs/imo/proofs").rglob("rows.parquet")
    assert path.parent.name == "program=refine"
    rows = pl.read_parquet(path, hive_partitioning=False)
    # 4 proofs with 4 verifications each, all of them good: no round of refinements
    assert rows["steps"].to_list() == [20, 20]
    assert rows["unread_steps"].to_list() == [0, 0]


def test_proofbench_has_its_own_data_and_prompt(mbt, olympiad):
    folder, settings, _ = olympiad
    lines = (DATA / "proofbench.jsonl").read_text().splitlines()
    for name, line in zip(("24_25", "other"), lines, strict=True):
        (folder / f"imo/proofbench_{name}.jsonl").write_text(line + "\n")

    ran = mbt("run", IMO, *settings, "--only", "proofbench-proofs*")

    assert ran.code == 0, ran.err
    paths = list((folder / "runs/imo/proofbench-proofs-graded").rglob("rows.parquet"))
    assert {part for path in paths for part in path.parts if "split=" in part} == {
        "split=24_25",
        "split=other",
    }
    row = pl.read_parquet(paths[0], hive_partitioning=False).row(0, named=True)
    assert row["points"] == 5
    assert row["items"] == [{"name": "Names reflexivity", "points": 5.0, "max": 7.0}]
    sent = row["messages"][-1]["content"]
    assert "Marking scheme:\n" in sent
    assert "Names reflexivity" in sent or "1. Says so" in sent


def test_data_that_are_not_there_leave_out_only_their_stages(mbt, olympiad):
    folder, settings, _ = olympiad

    told = mbt("check", IMO, *settings, "--json")
    (folder / "imo/proofbench_v2.csv").unlink()
    missing = mbt("check", IMO, *settings)

    assert told.code == 0, told.err
    assert "proofbench" not in json.dumps(json.loads(told.out).get("cells", {}))
    assert missing.code == 0, missing.err
    said = missing.out + missing.err
    assert "optional cells are excluded: their source does not exist" in said
    assert "imo_proof" not in said


def test_a_plan_has_judging_after_inference(mbt, olympiad):
    _, settings, _ = olympiad

    ran = mbt("plan", IMO, *settings, "--only", "proofs*")

    assert ran.code == 0, ran.err
    jobs = {job["id"]: job for job in json.loads(ran.out)["jobs"]}
    (judging,) = (job for name, job in jobs.items() if name.startswith("proofs-graded"))
    assert any(name.startswith("proofs-") for name in judging["needs"])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("metadata", "did you mean `metadata.KEY`?"),
        ("dificulty", "did you mean `difficulty`?"),
        ("level", "did you mean `metadata.level`?"),
        ("metadata.", "did you mean `metadata.KEY`?"),
    ],
)
def test_a_wrong_breakdown_says_what_there_is(mbt, olympiad, key, message):
    _, settings, _ = olympiad

    ran = mbt("check", IMO, *settings, "--set", f'stage.proofs-scores.by=["{key}"]')

    assert ran.code == 2
    assert "must be `metadata.KEY`, `difficulty`, `hops` or `question_type`" in ran.err
    assert message in ran.err


def test_a_key_that_no_question_has_is_named(mbt, olympiad):
    _, settings, _ = olympiad
    wrong = ["--set", 'stage.proofs-scores.by=["metadata.levle"]', "--only", "proofs*"]

    ran = mbt("run", IMO, *settings, *wrong, "--only", "!proofs-tables")

    assert ran.code != 0
    assert "has it in its metadata; did you mean `metadata.level`?" in " ".join(ran.err.split())


def test_points_need_a_judge_of_points(mbt, olympiad):
    _, settings, _ = olympiad

    ran = mbt("check", IMO, *settings, "--set", 'stage.proofs-graded.matrix.judge="solution_check"')

    assert ran.code == 2
    assert "`points` needs verdicts of the judge `proof_points`" in ran.err


@pytest.mark.parametrize("label", ["8", "good"])
def test_labels_are_points(mbt, olympiad, label):
    folder, settings, _ = olympiad
    (folder / "labels.csv").write_text(f"question_id,sample,label\nown-g1,0,{label}\n")

    ran = mbt("check", IMO, *settings, "--set", "stage.given-scores.human=labels.csv")

    assert ran.code == 2
    assert f"the label `{label}` is none of the numbers from 0 to 7" in " ".join(ran.err.split())


def test_a_prover_over_two_nodes_is_booked_and_joined(mbt, workplace):
    (workplace / "imo").mkdir()
    shutil.copy(DATA / "imo_proof.csv", workplace / "imo/proofbench_v2.csv")
    prover = ["--set", 'models.prover.preset="qwen3.5-397b-a17b-fp8"']
    prover += ["--set", "models.prover.sampling={ temperature = 0.6, max_tokens = 64 }"]
    prover += [
        "--set",
        "models.prover.place={ tensor_parallel_size = 8, flags = { pipeline_parallel_size = 2 } }",
    ]
    plan = mbt("plan", IMO, *prover, "--preset", "two-nodes", "--json")
    assert plan.code == 0, plan.err
    (workplace / "plan.json").write_text(plan.out)

    booked = mbt("submit", "plan.json", "--slurm", "--preset", "two-nodes", "--dry-run")

    assert booked.code == 0, booked.err
    jobs = {job["id"]: job for job in json.loads(plan.out)["jobs"]}
    proofs = next(job for name, job in jobs.items() if name.startswith("proofs-1"))
    assert proofs["resources"]["gpus"] == 16
    scripts = booked.out.split("#!/bin/bash")
    (served,) = [script for script in scripts if "MBT_NODES_KEY" in script]
    assert "#SBATCH --nodes=2" in served
    assert "#SBATCH --gpus-per-node=8" in served
    assert "proofs/" in served
    assert any("proofs-graded/" in script and "--gpus" not in script for script in scripts)
