"""Every package that the project promises is declared and really used."""

import re
import tomllib
from itertools import chain

import pytest

from tests.conftest import REPOSITORY

PROMISED = {
    "typer": "typer",
    "rich": "rich",
    "pydantic": "pydantic",
    "pydantic-settings": "pydantic_settings",
    "vllm": "vllm",
    "openai": "openai",
    "polars": "polars",
    "pyarrow": "pyarrow",
    "transformers": "transformers",
    "trl": "trl",
    "peft": "peft",
    "accelerate": "accelerate",
    "flash-attn": "flash",
    "wandb": "wandb",
    "huggingface-hub": "huggingface_hub",
}


def declared() -> set[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    return {re.split(r"[\[>=<~!; ]", line)[0].lower() for line in lines}


@pytest.mark.parametrize("package", PROMISED)
def test_a_promised_package_is_declared(package):
    assert package in declared()


@pytest.mark.parametrize("package", PROMISED)
def test_a_promised_package_is_used(package):
    word = re.compile(rf"\b{PROMISED[package]}")
    used = [
        p
        for p in (REPOSITORY / "mbt_cli").rglob("*.py")
        if word.search(p.read_text(encoding="utf-8"))
    ]

    assert used


def test_base_install_has_no_torch():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    assert not [d for d in project["dependencies"] if "torch" in d or "transformers" in d]


def test_constraints_pin_exactly_and_name_no_host():
    lines = (REPOSITORY / ".ci/constraints.txt").read_text().splitlines()

    assert lines
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+", line) for line in lines)
