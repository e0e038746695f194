"""What unit tests of plans, submissions and launchers share."""

import os

import pytest

from mbt_cli.engine.plan import Plan, make_plan
from mbt_cli.engine.states import States


@pytest.fixture
def planned(tmp_path):
    """The plan of a manifest, as if nothing were made yet."""

    def plan(manifest, *only: str, **limits) -> Plan:
        return make_plan(manifest, States(manifest, tmp_path / "runs"), only=only, **limits)

    return plan


class Slurm:
    """Stand-ins for `squeue`, `sacct` and `scontrol`, which write down how they were called."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.answers(squeue="", sacct="", scontrol="")

    def answers(self, **texts):
        for name, text in texts.items():
            self.does(name, f"cat {self.folder / name}.txt")
            (self.folder / f"{name}.txt").write_text(text)

    def does(self, name, command):
        (self.folder / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >> {self.folder}/calls.txt\n{command}\n'
        )
        (self.folder / name).chmod(0o755)

    def calls(self):
        path = self.folder / "calls.txt"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    return Slurm(tmp_path / "bin", monkeypatch)
