"""Every line of the tables of clusters in slurm/README.md: its preset is valid, its script has it.

A row names a habit or a cluster, the lines of a preset as code, and lines of the script.
"""

import re
import shlex
import tomllib

import pytest

from mbt_cli.engine.submit import load_launcher
from mbt_cli.manifest.presets import PresetFolders
from tests.conftest import REPOSITORY
from tests.unit.test_launchers import job


def rows() -> dict[str, tuple[list[str], list[str]]]:
    """Name of each row to the lines of the preset, and those of the script."""
    text = (REPOSITORY / "slurm" / "README.md").read_text(encoding="utf-8")
    section = text.partition("## What clusters ask for")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
        if line.startswith("| ") and "`" in line:
            name, preset, script = (cell.strip() for cell in cells[1:-1])
            assert name not in found, name
            found[name] = (re.findall(r"`([^`]+)`", preset), re.findall(r"`([^`]+)`", script))
    return found


ROWS = rows()
CLUSTERS = list(ROWS)[list(ROWS).index("Perlmutter (NERSC)") :]


@pytest.mark.parametrize("name", ROWS)
def test_what_a_cluster_asks_for_is_in_the_script(name, tmp_path):
    preset, expected = ROWS[name]
    text = "\n".join(preset)
    missing = {"gpu_job", "small_job"} - tomllib.loads(text).keys()
    folder = tmp_path / "slurm"
    folder.mkdir()
    tables = "".join(f"\n[{table}]" for table in sorted(missing))
    (folder / "own.toml").write_text(text + tables + "\n")

    launcher = load_launcher("slurm", "own", PresetFolders((tmp_path,)), {})
    if not launcher.gpu_job.gpus:  # the row is about something else
        node = launcher.gpu_job.model_copy(update={"gpus": 1})
        launcher = launcher.model_copy(update={"gpu_job": node})
    scripts = [launcher.render(job(gpus=gpus)) for gpus in (launcher.gpu_job.gpus, 0)]

    assert expected
    lines = [line for script in scripts for line in script.splitlines()]
    lines = [line.partition(" || gave_up ")[0] for line in lines]
    commands = [command(script) for script in scripts]
    for line in expected:
        assert line in lines or any(each.startswith(f"{line} ") for each in commands), line


def command(script: str) -> str:
    words = re.search(r"^command=\(\n(.*?)^\)", script, re.MULTILINE | re.DOTALL)[1]
    return shlex.join(shlex.split(words))


def test_the_table_knows_thirty_clusters_and_every_kind_of_habit():
    assert len(CLUSTERS) >= 30
    said = "\n".join(line for name in CLUSTERS for line in ROWS[name][0])
    for word in (
        *("partition", "account", "qos", "gres", "gpus", "--exclusive", "constraint", "modules"),
        *("container", "--reservation", "--tmp", "setup", "environment"),
    ):
        assert word in said, word
