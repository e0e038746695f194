"""The house: what stands at the top, what is shipped, and that every shipped file loads."""

import subprocess
import sys

import pytest

from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.presets import PresetFolders
from tests.conftest import REPOSITORY

TOP = {
    "mbt_cli", "manifests", "presets", "slurm", "tests", "pyproject.toml", "README.md", "Makefile",
    "LICENSE", "CHANGELOG.md",
}  # fmt: skip
MANIFESTS = sorted((REPOSITORY / "manifests").glob("*.toml"))


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return done.stdout.splitlines()


def test_nothing_else_stands_at_the_top():
    top = {path.split("/")[0] for path in tracked()}

    assert {name for name in top if not name.startswith(".")} <= TOP


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_every_shipped_manifest_is_right(path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)

    manifest = load_manifest(path, presets=PresetFolders((REPOSITORY / "presets",)))

    assert manifest.cells
    assert not manifest.warnings


def test_the_schema_beside_the_manifests_is_fresh():
    done = subprocess.run(
        [sys.executable, "-m", "mbt_cli", "check", "--schema"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert (REPOSITORY / "manifests/manifest.schema.json").read_text() == done.stdout, (
        "run: mbt check --schema > manifests/manifest.schema.json"
    )
