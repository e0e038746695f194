"""`mbt plan | mbt submit`, `merge` and `status` as they are typed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.chat_server import ChatServer


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def beside(workplace, warm):
    """Run mbt beside a Slurm that does not answer.

    Printing and writing scripts, and running them here, must do without one.
    """
    program(workplace / "bin", "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    path = f"{workplace / 'bin'}:{os.environ['PATH']}"

    def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        told = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
        return warm.run(words, workplace, told, text=text)

    return run


@pytest.fixture
def piped(beside):
    """Run `mbt submit ARGUMENTS` with a text on stdin."""
    return lambda text, *arguments: beside("submit", *arguments, text=text)


def test_a_plan_in_a_pipe_runs_the_study_on_this_machine(mbt, piped, workplace):
    plan = mbt("plan", "study.toml")

    done = piped(plan.out, "--local", "2")

    assert (plan.code, done.returncode) == (0, 0), done.stderr
    assert (workplace / "runs" / "small" / "tables" / "lineage.json").is_file()
    assert json.loads(mbt("plan", "study.toml").out)["jobs"] == []


def test_a_dry_run_prints_scripts_and_writes_nothing(mbt, piped, workplace):
    done = piped(mbt("plan", "study.toml").out, "--slurm", "--preset", "one-gpu", "--dry-run")

    assert done.stdout.count("#!/bin/bash") == 5
    assert "# ---- questions-1, " in done.stdout
    assert done.stderr == "5 scripts shown, nothing submitted\n"
    assert not (workplace / "runs").exists()


def test_scripts_can_be_written_without_submitting(mbt, piped, workplace):
    done = piped(mbt("plan", "study.toml").out, "--slurm", "--script-dir", "out")

    assert done.returncode == 0, done.stderr
    assert len(list((workplace / "out" / "scripts").glob("*.sh"))) == 5
    assert (workplace / "out" / "manifest.toml").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            (),
            "specify one place to run: `--slurm`, `--ssh`, `--sky`, `--sagemaker PRESET`, "
            "`--local N` or",
            id="no place",
        ),
        pytest.param(("--slurm", "--local", "1"), "specify one place", id="two places"),
        pytest.param(("--slurm", "--preset", "nope"), "no preset `nope`", id="preset"),
    ],
)
def test_wrong_usage_is_one_line(mbt, piped, arguments, words):
    done = piped(mbt("plan", "study.toml").out, *arguments)

    assert done.returncode == 2
    assert words in done.stderr


def test_bytes_on_stdin_are_refused_in_one_line(workplace):
    done = subprocess.run(
        [sys.executable, "-m", "mbt_cli", "submit", "--local", "1"],
        cwd=workplace,
        input=b"\x7fELF\xff\x00",
        capture_output=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.startswith(b"error: `stdin` does not contain a plan"), done.stderr


def test_a_plan_without_the_jobs_of_missing_cells_is_refused(mbt, piped, workplace):
    plan = json.loads(mbt("plan", "study.toml").out)

    emptied = piped(json.dumps({**plan, "jobs": []}), "--local", "1")

    assert emptied.returncode == 2
    assert "not all of its cells are done" in emptied.stderr


def test_a_plan_of_an_edited_manifest_is_refused(mbt, piped, workplace):
    plan = mbt("plan", "study.toml").out
    text = (workplace / "study.toml").read_text()
    (workplace / "study.toml").write_text(text.replace("samples = 2", "samples = 1"))

    done = piped(plan, "--local", "1")

    assert done.returncode == 2
    assert "has changed since the plan was made" in done.stderr


def test_shards_and_a_merge_make_the_rows_of_a_whole_run(mbt, workplace):
    cell = "base/prompt=answer"
    mbt("run", "study.toml", "--only", "questions")

    early = mbt("merge", "study.toml", "--only", cell)
    sent = [mbt("run", "study.toml", "--only", cell, "--shard", f"{n}/2") for n in (1, 2)]
    merged = mbt("merge", "study.toml", "--only", cell)

    assert early.code == 1
    assert "12 of 12 requests have no reply yet" in early.err
    assert [ran.code for ran in sent] == [0, 0]
    assert "0 model calls, 12 replies reused" in merged.out


def test_shards_say_how_fast_their_servers_were(mbt, workplace):
    cell, text = "base/prompt=answer", (workplace / "study.toml").read_text()
    canned = text[text.index("backend = ") :].partition("\n")[0]
    with ChatServer("<answer>Oslo</answer>") as server:
        own = f'backend = {{ kind = "openai", base_url = "{server.base_url}" }}'
        (workplace / "study.toml").write_text(text.replace(canned, own, 1))
        mbt("run", "study.toml", "--only", "questions")
        for number in (1, 2):
            mbt("run", "study.toml", "--only", cell, "--shard", f"{number}/2")
        mbt("merge", "study.toml", "--only", cell)

    (path,) = (workplace / "runs" / "small" / "base").rglob("lineage.json")
    pace = json.loads(path.read_text())["notes"]["pace"]
    jobs = json.loads(mbt("plan", "study.toml").out)["jobs"]

    # 12 replies of 5 tokens
    assert pace["completion_tokens"] == 60
    assert pace["seconds"] > 0
    (other,) = (job for job in jobs if job["cells"][0].startswith("base/"))
    assert other["resources"]["limit_seconds"] >= 1_800


def test_a_wrong_shard_is_refused(mbt):
    ran = mbt("run", "study.toml", "--shard", "3/2")

    assert ran.code == 2
    assert "`3/2` is not a shard" in ran.err


def test_status_of_a_study_that_was_never_submitted_says_so(mbt):
    ran = mbt("status", "small")

    assert ran.code == 2
    assert "nothing of a study `small` was run or submitted" in ran.err


def test_status_shows_the_artifacts_when_the_queue_does_not_answer(mbt, beside, piped, workplace):
    broken = (workplace / "bin" / "squeue").read_text().partition("\n")[2]
    program(workplace / "bin", "squeue", "exit 0")
    program(workplace / "bin", "sbatch", "echo $$")
    sent = piped(
        mbt("plan", "study.toml", "--set", "study.seed=5").out, "--slurm", "--preset", "one-gpu"
    )
    mbt("run", "study.toml", "--set", "study.seed=5", "--only", "questions")
    program(workplace / "bin", "squeue", broken)

    told = beside("status", "study.toml")

    assert (sent.returncode, told.returncode) == (0, 0), sent.stderr + told.stderr
    assert "Unable to contact slurm controller; showing what is on disk" in told.stdout
    assert "the queue does not answer" in told.stdout
    assert re.search(r"questions .* 1 ", told.stdout)
