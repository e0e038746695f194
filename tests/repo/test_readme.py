"""The README tells only of commands, targets and folders that are there."""

import re

import pytest
from typer.main import get_command

from mbt_cli.cli.commands import app
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CODE = "\n".join(
    [*re.findall(r"```\n(.*?)```", README, re.DOTALL), *re.findall(r"`([^`\n]+)`", README)]
)
LINES = sorted(set(re.findall(r"(?:^|\| )(mbt [a-z][^|`\\\n]*)", CODE, re.MULTILINE)))
TARGETS = sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)))


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_is_real(line):
    verb, *words = line.split("#")[0].split()[1:]
    command = get_command(app).commands[verb]

    options = {option for p in command.params for option in p.opts}
    for group in getattr(command, "commands", {}).values():
        options |= {option for p in group.params for option in p.opts}
    used = {word.split("=")[0] for word in words if word.startswith("--")}
    assert used <= options, used - options


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_is_there(target):
    assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_every_folder_of_the_package_is_in_the_tree():
    tree = README.partition("## The code in a minute")[2]
    folders = {p.name for p in (REPOSITORY / "mbt_cli").iterdir() if p.is_dir()} - {"__pycache__"}

    assert {name for name in folders if f"{name}/" not in tree} == set()
