"""Jobs through SkyPilot: its tasks, checked by SkyPilot where it is installed, and their order."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
import yaml

from mbt_cli.core.jobs import QueuedJob
from mbt_cli.engine.submit import load_launcher
from mbt_cli.errors import ManifestError, MbtError
from mbt_cli.launchers.skypilot import SkypilotLauncher
from mbt_cli.manifest.presets import PresetFolders
from tests.unit.test_launchers import NASTY, job

SKYPILOT = os.environ.get("MBT_SKYPILOT_PYTHON", sys.executable)
"""A Python with SkyPilot."""
SECRET = "hf_a_value_that_no_file_may_hold"

FAKE_SKY = """
import fcntl, json, os, pathlib, subprocess, sys, yaml
here = pathlib.Path(__file__).parent
words = sys.argv[1:]
lock = (here / "lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)  # one command at a time
with (here / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
state = here / "jobs.json"
jobs = json.loads(state.read_text()) if state.exists() else []
if words[:2] == ["jobs", "launch"]:
    if (here / "refuses").exists():
        sys.exit("No cloud is enabled")
    task = yaml.safe_load(open(words[-1]))
    environment = dict(os.environ)
    for option, value in zip(words, words[1:]):
        if option == "--env":
            environment.update([value.split("=", 1)])
    jobs.append({"job_id": len(jobs) + 1, "job_name": words[words.index("--name") + 1],
                 "status": "RUNNING"})
    state.write_text(json.dumps(jobs))
    if not (here / "hangs").exists():
        done = subprocess.run(["bash", "-c", task["run"]], env=environment)
        jobs[-1]["status"] = "FAILED" if done.returncode else "SUCCEEDED"
elif words[:2] == ["jobs", "cancel"]:
    for each in jobs:
        if str(each["job_id"]) in words:
            each["status"] = "CANCELLED"
elif words[:2] == ["jobs", "queue"]:
    if not jobs:
        sys.exit("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.")
    print("(Tip) a line that is no JSON")
    print(json.dumps(jobs, indent=2))
state.write_text(json.dumps(jobs))
"""
"""A stand-in for `sky` that runs a managed job at once, on this machine."""


@pytest.fixture
def sky(tmp_path):
    """The folder of a stand-in for `sky`."""
    folder = tmp_path / "sky"
    folder.mkdir()
    (folder / "sky.py").write_text(FAKE_SKY)
    return folder


@pytest.fixture
def launcher(sky):
    command = [sys.executable, str(sky / "sky.py")]
    return SkypilotLauncher(gpu_job={"gpu": "H100", "gpus": 8}, sky=command, poll_seconds=0.05)


def noted(launcher, folder, name, *words, after=(), **settings):
    """Submit a job that runs these words; its id."""
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    wanted = job(folder, argv=words, workdir=folder, **settings)
    wanted = type(wanted)(
        name, wanted.argv, (), wanted.context, gpus=wanted.gpus, shards=wanted.shards
    )
    script = folder / "scripts" / f"{name}.yaml"
    script.write_text(launcher.render(wanted))
    return launcher.submit(wanted, script, after=after)


def calls(sky, verb):
    lines = (sky / "calls.jsonl").read_text().splitlines()
    return [words for words in map(json.loads, lines) if words[1] == verb]


# tasks


@pytest.fixture
def kubernetes(presets):
    return load_launcher("skypilot", "kubernetes", presets, {})


def test_a_task_books_the_share_of_a_machine_that_it_uses(kubernetes):
    task = yaml.safe_load(kubernetes.render(job(gpus=2)))

    assert task["resources"] == {
        "infra": "k8s",
        "accelerators": "H100:2",
        "cpus": "24+",
        "memory": "240+",
    }
    assert task["volumes"] == {"/data": "mbt-data"}
    assert task["run"].splitlines()[-2:] == [
        "command=(/opt/venv/bin/mbt run /data/runs/s/submissions/t/manifest.toml --only "
        "base/model=m)",
        '"${command[@]}" 2>&1 | tee -a -- /data/runs/s/submissions/t/logs/base-1.log',
    ]


def test_a_small_job_gets_a_small_machine_and_a_training_that_fills_it_a_whole_one(kubernetes):
    small = yaml.safe_load(kubernetes.render(job(gpus=0)))["resources"]
    whole = yaml.safe_load(kubernetes.render(job(gpus=1, trains=True, fills=True)))["resources"]

    assert small == {"infra": "k8s", "cpus": "4+", "memory": "16+"}
    assert whole["accelerators"] == "H100:8"


def test_a_job_that_no_machine_can_hold_is_refused(kubernetes):
    with pytest.raises(MbtError, match="needs 16 GPUs and a machine of the preset has 8"):
        kubernetes.render(job(gpus=16))
    with pytest.raises(MbtError, match="needs 8 GPUs on 2 machines"):
        kubernetes.render(job(gpus=8, nodes=2, trains=True))


@pytest.mark.parametrize("nasty", [*NASTY, "\x7f\u2028ü", "${HOME}"])
def test_a_task_runs_the_command_and_nothing_else(tmp_path, nasty):
    launcher = SkypilotLauncher(gpu_job={}, environment={"OWN": nasty})
    (tmp_path / "logs").mkdir()
    wanted = job(
        tmp_path,
        gpus=0,
        argv=("printf", "%s", nasty),
        workdir=tmp_path,
        environment={"NASTY": nasty},
    )

    run = yaml.safe_load(launcher.render(wanted))["run"]
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True)

    assert done.stdout == (tmp_path / "logs" / "base-1.log").read_text() == nasty
    assert not list(tmp_path.rglob("pwned"))


def test_a_failure_of_the_command_is_one_of_the_task(tmp_path):
    (tmp_path / "logs").mkdir()
    wanted = job(tmp_path, gpus=0, argv=("bash", "-c", "exit 3"), workdir=tmp_path)

    run = yaml.safe_load(SkypilotLauncher(gpu_job={}).render(wanted))["run"]

    assert subprocess.run(["bash", "-c", run], check=False).returncode == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpu_job]\ngpus = 8\n", "`gpu` and `gpus` go together"),
        ("image = '$IMAGE'\n[gpu_job]\n", "which SkyPilot would replace"),
        ("[volumes]\ndata = 'x'\n[gpu_job]\n", "write `/data`"),
        ("[environment]\nHF_TOKEN = 'x'\n[gpu_job]\n", "looks like a secret"),
        ("pass_on = ['HF_TOKEN=x']\n[gpu_job]\n", "is not the name of a variable"),
    ],
)
def test_a_mistake_in_a_preset_is_a_problem(tmp_path, text, words):
    folder = tmp_path / "skypilot"
    folder.mkdir()
    (folder / "own.toml").write_text(text)

    with pytest.raises(ManifestError, match=r"own\.toml") as raised:
        load_launcher("skypilot", "own", PresetFolders((tmp_path,)), {})

    assert words in raised.value.message


VALIDATE = """
import sys, jsonschema, sky, yaml
from sky.utils import schemas
for path in sys.argv[1:]:
    task = yaml.safe_load(open(path))
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())
    print(*sky.Task.from_yaml_config(task).resources)
"""


def test_skypilot_accepts_every_kind_of_task(kubernetes, tmp_path):
    if subprocess.run([SKYPILOT, "-c", "import sky"], capture_output=True, check=False).returncode:
        pytest.skip("no SkyPilot: set MBT_SKYPILOT_PYTHON to a Python that has it")
    spot = kubernetes.model_copy(
        update={"use_spot": True, "disk_gb": 500, "infra": "aws/us-east-1"}
    )
    image = kubernetes.model_copy(update={"image": "docker:me/mbt:1"})
    tasks = {
        "small": kubernetes.render(job(gpus=0)),
        "served": kubernetes.render(job(gpus=4)),
        "array": kubernetes.render(job(gpus=4, shards=8)),
        "trained": kubernetes.render(job(gpus=8, trains=True, fills=True)),
        "nasty": image.render(job(argv=("printf", "%s", "\x7f\u2028ü"))),
        "spot": spot.render(job(gpus=1)),
    }
    for name, text in tasks.items():
        (tmp_path / f"{name}.yaml").write_text(text)

    files = [str(tmp_path / f"{name}.yaml") for name in tasks]
    done = subprocess.run(
        [SKYPILOT, "-c", VALIDATE, *files], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "mem=" in line]
    assert len(lines) == len(tasks)
    assert "'H100': 4" in lines[1]
    assert "[Spot]" in lines[-1]


# order, queue, end


def test_jobs_are_launched_in_the_order_of_their_needs(launcher, sky, tmp_path):
    folder = tmp_path / "record"
    first = noted(launcher, folder, "first", "bash", "-c", "echo 1 >> order; exit 1")
    last = noted(launcher, folder, "last", "bash", "-c", "echo 3 >> order", after=[first])
    noted(launcher, folder, "other", "bash", "-c", "echo 2 >> order")
    assert {each.id for each in launcher.queued("", [first, last])} == {first, last}

    launcher.finish(lambda line: None)

    # a job that failed has made some of its cells, and the next one makes what it can of them
    assert (folder / "order").read_text().split() == ["1", "2", "3"]
    assert launcher.queued("", [first, last]) == []
    ends = launcher.ended_jobs([first, last])
    assert [(ends[each].outcome, ends[each].state) for each in (first, last)] == [
        ("failed", "FAILED"),
        ("completed", "SUCCEEDED"),
    ]
    assert launcher.gone(first)


def test_each_shard_is_a_job_of_its_own(launcher, sky, tmp_path):
    folder = tmp_path / "record"
    words = ("bash", "-c", 'echo "$@"', "x")
    made = noted(launcher, folder, "base-2", *words, shards=3)

    launcher.finish(lambda line: None)

    names = [call[call.index("--name") + 1] for call in calls(sky, "launch")]
    assert len(set(names)) == 3
    logs = launcher.logs(made, folder, "base-2")
    assert sorted(log.read_text() for log in logs) == [f"--shard {n}/3\n" for n in (1, 2, 3)]
    assert launcher.ended(made).state == "SUCCEEDED"


def test_secrets_are_named_and_never_written(launcher, sky, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    noted(launcher, tmp_path / "record", "base-1", "true")

    launcher.finish(lambda line: None)

    (call,) = calls(sky, "launch")
    assert [call[i + 1] for i, word in enumerate(call) if word == "--secret"] == ["HF_TOKEN"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET in path.read_text(errors="replace")]


def test_running_jobs_are_cancelled_and_waiting_ones_never_launched(launcher, sky, tmp_path):
    (sky / "hangs").touch()
    folder = tmp_path / "record"
    running = noted(launcher, folder, "running", "true")
    waits = noted(launcher, folder, "waits", "true", after=[running])
    thread = threading.Thread(target=launcher.finish, args=(lambda line: None,))
    thread.start()
    try:
        while QueuedJob(running, True) not in launcher.queued("", [running, waits]):
            time.sleep(0.2)  # the stand-in answers one at a time
        assert QueuedJob(waits, False, "waiting") in launcher.queued("", [running, waits])
        assert not launcher.gone(running)
    finally:
        launcher.cancel([waits, running])
        thread.join()

    assert len(calls(sky, "launch")) == 1
    assert calls(sky, "cancel") == [["jobs", "cancel", "--yes", "1"]]
    assert launcher.ended(running).outcome == launcher.ended(waits).outcome == "cancelled"


def test_what_nobody_launches_any_more_is_not_queued(launcher, sky, tmp_path):
    folder = tmp_path / "record"
    made = noted(launcher, folder, "base-1", "true")
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
    )
    alive = folder / "skypilot" / "launching"
    host, _, _ = alive.read_text().partition(" ")
    assert launcher.queued("", [made])

    alive.write_text(f"{host} {int(ended.stdout)}")

    assert launcher.queued("", [made]) == []
    assert launcher.ended(made).state == "NOT_LAUNCHED"
    assert launcher.gone(made)


def test_a_refused_launch_says_why(launcher, sky, tmp_path):
    (sky / "refuses").touch()
    noted(launcher, tmp_path / "record", "base-1", "true")

    with pytest.raises(MbtError, match="No cloud is enabled") as refused:
        launcher.finish(lambda line: None)

    assert refused.value.hint == "check with `sky check`"


def test_a_machine_without_skypilot_is_told_what_to_install(tmp_path):
    launcher = SkypilotLauncher(gpu_job={}, sky=[str(tmp_path / "no-sky")])
    noted(launcher, tmp_path / "record", "base-1", "true", gpus=0)

    with pytest.raises(MbtError, match="no command") as missing:
        launcher.finish(lambda line: None)

    assert 'pip install "mbt-cli[sky]"' in missing.value.hint
