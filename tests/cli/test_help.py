"""Help is complete, and comes at once: what each command must not import is written here."""

import os
import subprocess
import sys

import pytest
from typer.main import get_command

from mbt_cli.cli.commands import app

VERBS = sorted(get_command(app).commands)
"""Every verb; a new one is held to the same without a line here."""

NOT_FOR_A_KEY_PRESS = (
    *("pydantic", "pydantic_core", "pydantic_settings", "polars", "pyarrow", "numpy"),
    *("aiohttp", "uvloop", "orjson", "openai", "huggingface_hub", "torch", "matplotlib"),
    *("transformers", "datasets", "wandb", "vllm", "xllamacpp", "scipy", "requests", "httpx"),
)
NOT_FOR_A_LOOK = ("openai", "huggingface_hub", "torch", "matplotlib", "transformers", "xllamacpp")
"""check and plan may have Pydantic and Polars."""


@pytest.fixture
def heavy(workplace):
    """Which of these modules `mbt ARGUMENTS` imports; it must end well."""

    def found(names: tuple[str, ...], *arguments: str, **environment: str) -> str:
        code = (
            f"import sys\nsys.argv = ['mbt', *{arguments!r}]\nfrom mbt_cli.app import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            f"sys.stderr.write(' '.join(m for m in {names!r} if m in sys.modules))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=workplace,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    return found


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_of_every_verb_is_there_and_imports_typer_and_rich_alone(mbt, heavy, verb):
    said = [verb] if verb else []
    shown = mbt(*said, "--help")

    assert shown.code == 0
    assert f"Usage: mbt {verb}".rstrip() in shown.out
    assert heavy(NOT_FOR_A_KEY_PRESS, *said, "--help") == ""


@pytest.mark.parametrize("verb", ["fetch", "ls"])
def test_so_does_the_help_of_a_verb_within_a_group(heavy, verb):
    assert heavy(NOT_FOR_A_KEY_PRESS, "data", verb, "--help") == ""


def test_every_verb_stands_in_the_help_with_its_first_line(mbt):
    shown = mbt("--help").out

    hidden = ["node"]  # which scripts of jobs start
    assert [verb for verb in VERBS if f"\n  {verb} " not in shown] == hidden
    assert "Run every stage on this machine" in shown


def test_summaries_are_wrapped_and_not_cut_on_a_narrow_terminal(mbt):
    for columns in ("40", "80"):
        commands = mbt("--help", COLUMNS=columns).out.partition("Commands:")[2]

        assert [line for line in commands.splitlines() if line.endswith("...")] == []
        shown = " ".join(commands.split())
        assert "Run every stage on this machine, inputs first; finished cells are skipped." in shown


@pytest.mark.parametrize(
    "words",
    [("mbt", "r"), ("mbt", "run", "st"), ("mbt", "submit", "--preset", "p"), ("mbt", "show", "")],
    ids=" ".join,
)
def test_completion_without_a_manifest_imports_typer_and_rich_alone(heavy, words):
    asked = {
        "_MBT_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }

    assert heavy(NOT_FOR_A_KEY_PRESS, **asked) == ""


@pytest.mark.parametrize("verb", ["check", "plan"])
def test_a_look_at_a_manifest_imports_nothing_that_runs_one(heavy, verb):
    assert heavy(NOT_FOR_A_LOOK, verb, "study.toml") == ""


def test_an_unknown_verb_is_a_usage_error(mbt):
    assert mbt("rolout", "x.toml").code == 2


def test_the_version_is_told(mbt):
    told = mbt("--version")

    assert told.code == 0
    assert told.out.startswith("mbt ")
