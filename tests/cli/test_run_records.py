"""Records of runs: `runs/STUDY/.runs/` has the manifest, the command and the checkout of each."""

import json
import shutil
import subprocess

import polars as pl
import pytest

ONLY = ("--only", "questions", "-q")


def git(folder, *arguments):
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(workplace):
    """The study in a git checkout, with a change and a file that git does not track."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    (workplace / "notes.txt").write_text("one\n")
    git(workplace, "init", "-q", "-b", "main")
    git(workplace, "add", "study.toml", "notes.txt")
    git(workplace, "commit", "-q", "-m", "begin")
    (workplace / "notes.txt").write_text("two, my token is 9f8e7d6c5b4a\n")
    (workplace / "mine.csv").write_text("x\n")
    return workplace


def records(workplace):
    return sorted((workplace / "runs/small/.runs").iterdir())


def run_of(record):
    return json.loads((record / "run.json").read_text())


def test_a_run_leaves_its_manifest_its_command_and_its_checkout(mbt, checkout):
    (checkout / "runs/small").mkdir(parents=True)
    (checkout / "runs/small/NOTES.md").write_text("mine\n")
    (checkout / "longer.toml").write_text('[study]\nextends = "study.toml"\nmax_failed_share = 0.5')

    ran = mbt(
        "run", "longer.toml", "--set", "benchmarks.tiny.limit=3", *ONLY, MY_TOKEN="9f8e7d6c5b4a"
    )

    assert ran.code == 0, ran.err
    (record,) = records(checkout)
    assert sorted(path.name for path in record.iterdir()) == [
        "git_diff.patch",
        "git_status.txt",
        "git_untracked",
        "manifest.toml",
        "run.json",
    ]
    run = run_of(record)
    assert run["command"] == (
        "mbt run longer.toml --set benchmarks.tiny.limit=3 --only questions -q"
    )
    assert (run["exit_code"], run["folder"], run["cells_made"]) == (0, "../..", 1)
    assert run["cells"] == ["questions/benchmark=tiny/split=validation"]
    assert run["started"] <= run["ended"]
    assert (run["git"]["branch"], run["git"]["dirty"]) == ("main", True)
    assert len(run["git"]["commit"]) == 40
    assert run["packages"]["polars"] == pl.__version__
    status = (record / "git_status.txt").read_text().splitlines()
    assert {" M notes.txt", "?? mine.csv"} <= set(status)
    patch = (record / "git_diff.patch").read_text()
    assert "-one\n+two, my token is [secret]\n" in patch
    # whole: a manifest that needs no other
    again = mbt("check", str(record / "manifest.toml"))
    assert again.code == 0, again.err
    text = (record / "manifest.toml").read_text()
    assert "limit = 3" in text
    assert "max_failed_share = 0.5" in text
    # nothing else sees records, and nothing touches the notes
    assert (checkout / "runs/small/NOTES.md").read_text() == "mine\n"
    shown = mbt("show", "runs/small")
    assert "notes: runs/small/NOTES.md" in shown.out
    listed = json.loads(mbt("status", "small", "--json").out)
    assert [cell["address"] for cell in listed["cells"]] == run["cells"]


def test_small_texts_that_git_neither_tracks_nor_ignores_are_copied(mbt, checkout):
    (checkout / "runs/other").mkdir(parents=True)
    (checkout / "runs/other/log.txt").write_text("made by a run\n")
    (checkout / "lib").mkdir()
    (checkout / "lib/rule.py").write_text("TOKEN = '9f8e7d6c5b4a'\n")
    (checkout / ".gitignore").write_text("left_out.txt\n")
    (checkout / "left_out.txt").write_text("ignored\n")
    (checkout / ".env").write_text("KEY=without-a-shape\n")
    (checkout / "weights.bin").write_bytes(b"\0\1\2")
    (checkout / "long.txt").write_text("x" * 100_001)
    (checkout / "link.txt").symlink_to(checkout / "left_out.txt")

    ran = mbt("run", "study.toml", *ONLY, MY_TOKEN="9f8e7d6c5b4a")

    assert ran.code == 0, ran.err
    (record,) = records(checkout)
    copies = record / "git_untracked"
    found = {str(p.relative_to(copies)) for p in copies.rglob("*") if p.is_file()}
    assert {"mine.csv", "lib/rule.py", ".gitignore"} <= found
    out = {"left_out.txt", ".env", "weights.bin", "long.txt", "link.txt", "notes.txt"}
    assert not found & out
    assert not any(name.startswith("runs/") for name in found)
    assert (copies / "mine.csv").read_text() == "x\n"
    assert (copies / "lib/rule.py").read_text() == "TOKEN = '[secret]'\n"


def test_a_run_that_fails_says_how_it_ended_and_old_records_are_removed(mbt, workplace):
    folder = workplace / "runs/small/.runs"
    for number in range(205):
        (folder / f"2020-01-01T000000Z-host-{number:03d}").mkdir(parents=True)

    ran = mbt("score", "study.toml")

    assert ran.code == 2
    found = records(workplace)
    assert len(found) == 200
    assert [path.name for path in found[:2]] == [f"2020-01-01T000000Z-host-{n:03d}" for n in (6, 7)]
    run = run_of(found[-1])
    assert run["exit_code"] == 2
    assert "does not exist yet" in run["error"]
    assert run["cells_made"] == 0


def test_a_record_that_cannot_be_written_stops_no_run(mbt, workplace):
    (workplace / "runs/small").mkdir(parents=True)
    (workplace / "runs/small/.runs").write_text("a file where a folder is needed")

    ran = mbt("run", "study.toml", *ONLY)

    assert ran.code == 0, ran.err
    assert ran.err == ""


def test_a_job_names_its_submission_which_has_the_state_of_the_checkout(mbt, checkout):
    plan = mbt("plan", "study.toml", "--only", "questions")
    (checkout / "plan.json").write_text(plan.out)

    ran = mbt("submit", "plan.json", "--local", "1")

    assert ran.code == 0, ran.err
    (submission,) = (checkout / "runs/small/submissions").iterdir()
    assert " M notes.txt" in (submission / "git_status.txt").read_text()
    assert "+two, my token" in (submission / "git_diff.patch").read_text()
    (record,) = records(checkout)
    assert sorted(path.name for path in record.iterdir()) == ["manifest.toml", "run.json"]
    run = run_of(record)
    assert (run["submission"], run["git"], run["exit_code"]) == (submission.name, None, 0)
