"""The scripts of the paper's study for every shipped preset of a cluster, as an admin reads them.

A golden holds what each kind of job asks Slurm for, and what it runs; the fixed text of the script
is in `goldens_slurm/*.sh`. All of them are made again by

    MBT_WRITE_GOLDENS=1 pytest tests/unit/test_paper_scripts.py tests/unit/test_launchers.py
"""

import os
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mbt_cli.engine.plan import make_plan
from mbt_cli.engine.states import States
from mbt_cli.engine.submit import load_launcher, prepare
from mbt_cli.errors import MbtError
from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.settings import Machine
from tests.conftest import REPOSITORY

GOLDENS = Path(__file__).parent / "goldens_slurm" / "paper"
SHIPPED = sorted(path.stem for path in (REPOSITORY / "presets" / "slurm").glob("*.toml"))
FOLDERS = PresetFolders((REPOSITORY / "presets",))
RECORD = Path("/data/runs/paper/submissions/now")
SHOWN = (
    *("questions-1", "base-1", "base-2", "merge-base-1"),
    *("sft-1", "grpo-1", "judges-1", "tables-1"),
)
"""Data, a server, an array of shards, its merging job, both trainings, a judge, and the tables."""


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """The jobs of the paper's study on a cluster, or why they are refused."""
    runs = tmp_path_factory.mktemp("runs")
    manifest = load_manifest(REPOSITORY / "manifests" / "paper.toml", presets=FOLDERS, overrides=())
    plan = make_plan(manifest, States(manifest, runs))

    def prepared(launcher):
        return prepare(
            *(plan, manifest, FOLDERS, launcher, Machine(runs=runs, cache=Path("/data/cache"))),
            record=RECORD,
            now=datetime(2026, 1, 1, tzinfo=UTC),
            mbt=("/data/venv/bin/mbt",),
            submit="mbt submit --slurm",
            submits=False,
        )

    return prepared


def requests(script: str) -> str:
    """The directives, the site's commands and the command of a script; nothing of this machine."""
    directives = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    site = re.findall(r"^(.*) \|\| gave_up ", script, re.MULTILINE)
    words = re.search(r"^command=\(\n(.*?)^\)", script, re.MULTILINE | re.DOTALL)[1].splitlines()
    command = [shlex.split(word)[0] for word in words]
    text = "\n".join([*directives, *site, shlex.join(command)])
    return re.sub(r"--comment=\S+", "--comment=LABEL", text)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_scripts_of_the_paper_are_the_recorded_ones(name, paper, monkeypatch):
    for variable in ("HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "MBT_OFFLINE", "MBT_NO_DOTENV"):
        monkeypatch.delenv(variable, raising=False)
    launcher = load_launcher("slurm", name, FOLDERS, {})
    submission = paper(launcher)

    try:
        scripts = {job.id: launcher.render(job) for job in submission.jobs}
        parts = [f"# {job_id}\n{requests(scripts[job_id])}\n" for job_id in SHOWN]
    except MbtError as error:
        parts = [f"refused: {error.message}\nhint: {error.hint}\n"]

    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("MBT_WRITE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("\n".join(parts))
    assert "\n".join(parts) == golden.read_text()


def test_every_job_of_the_paper_asks_for_what_it_uses_and_no_more(paper):
    launcher = load_launcher("slurm", "eight-gpus", FOLDERS, {})
    submission = paper(launcher)

    for job in submission.jobs:
        asked = requests(launcher.render(job))
        found = re.search(r"--gres=gpu:(\d+)", asked)
        assert int(found[1] if found else 0) == job.gpus, job.id
        assert (f"--mem={120 * job.gpus}G" if job.gpus else "--mem=32G") in asked
