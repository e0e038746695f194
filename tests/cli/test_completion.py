"""Completion as a shell asks for it: in a real bash, and by the variables of zsh and fish."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.terminal import Tmux

CELL = "base/benchmark=tiny/split=validation/model=parrot/prompt="
HEAVY = ("pydantic", "polars", "numpy", "aiohttp", "openai", "huggingface_hub", "torch")


@pytest.fixture
def surroundings(workplace):
    """An environment with an `mbt` on the path and a cache of its own."""
    program = workplace / "bin/mbt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mbt_cli "$@"\n')
    program.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MBT_", "XDG_"))}
    path = f"{program.parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "MBT_CACHE": str(workplace / "cache"), "NO_COLOR": "1"}


@pytest.fixture
def ask(workplace, surroundings):
    """What `mbt` answers to one key press."""

    def answered(**variables: str) -> list[str]:
        done = subprocess.run(
            ["mbt"],
            cwd=workplace,
            env={**surroundings, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.rstrip("\n").splitlines()

    return answered


@pytest.fixture
def bash(ask):
    """What bash is told, given COMP_WORDS up to the word that is typed."""

    def told(*pieces: str) -> list[str]:
        at = str(len(pieces) - 1)
        return ask(_MBT_COMPLETE="complete_bash", COMP_WORDS="\n".join(pieces), COMP_CWORD=at)

    return told


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["mbt", "rol"], ["rollout"]),
        (["mbt", "run", ""], ["study.toml"]),
        (["mbt", "run", "study.toml", "--on"], ["--only"]),
        (
            ["mbt", "run", "study.toml", "--only", ""],
            ["questions", "base", "answers", "scores", "tables"],
        ),
        # a lone candidate would end the word
        (["mbt", "run", "study.toml", "--only", "ba"], ["base", "base/"]),
        (
            ["mbt", "run", "study.toml", "--only", "base/"],
            [f"{CELL}answer", f"{CELL}metacognitive"],
        ),
        # after `=` bash replaces the last piece alone
        (
            ["mbt", "run", "study.toml", "--only", "base/prompt", "="],
            ["answer", "metacognitive"],
        ),
        (
            ["mbt", "run", "study.toml", "--only", "base/prompt", "=", "an"],
            ["answer", "answer/"],
        ),
        (["mbt", "run", "study.toml", "--only", "=", "sc"], ["scores", "scores/"]),
        # a quoted word is not broken
        (
            ["mbt", "run", "study.toml", "--only", "'!base/prompt=m"],
            ["!base/prompt=metacognitive", "!base/prompt=metacognitive/"],
        ),
        (
            ["mbt", "run", "--only", "base", "study.toml", "--set", "study.se"],
            ["study.seed=", "study.seed=1", "study.seed=0"],
        ),
        (["mbt", "run", "study.toml", "--set", "study.seed", "="], ["1", "0"]),
        (
            ["mbt", "run", "study.toml", "--set", "stage.base.opt"],
            [f"stage.base.optional={value}" for value in ("", "false", "true")],
        ),
        (["mbt", "report", "study.toml", "--trace", ""], ["main_results"]),
        (["mbt", "data", "fetch", "study.toml", "--model", "p"], ["parrot"]),
        (["mbt", "data", "fetch", "study.toml", "--benchmark", ""], ["tiny"]),
        (["mbt", "submit", "--preset", "one-"], ["one-gpu", "one-node"]),
        (["mbt", "serve", "smol"], ["smollm2-135m", "smollm2-135m-mbt"]),
        (["mbt", "init", "--model", "smol"], ["smollm2-135m", "smollm2-135m-mbt"]),
        (["mbt", "init", "--kind", ""], ["embedded", "gpu", "cluster", "api"]),
        (["mbt", "init", "--benchmark", "mus"], ["musique"]),
        (["mbt", "help", "py"], ["python"]),
        (["mbt", "help", "mq"], ["mqi"]),
        (["mbt", "help", "metrics", "rr"], ["rrp"]),
        (["mbt", "help", "data", "mul"], ["multiple-choice"]),
        (["mbt", "doctor", "st"], ["study.toml"]),
        (["mbt", "plan", "study.toml", "st"], []),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_every_place_completes_to_what_may_stand_there(bash, pieces, expected):
    assert bash(*pieces) == expected


def test_ones_own_cluster_completes_too(bash, workplace):
    (workplace / "presets/slurm").mkdir(parents=True)
    (workplace / "presets/slurm/ours.toml").write_text("")

    assert bash("mbt", "submit", "--preset", "ou") == ["ours"]


def test_folders_of_artifacts_complete_down_to_the_cells(bash, mbt, workplace):
    mbt("rollout", "study.toml")

    cells = [f"runs/small/{CELL}{prompt}" for prompt in ("answer", "metacognitive")]
    assert bash("mbt", "export", "") == ["runs/small/base/", "runs/small/questions/"]
    assert bash("mbt", "view", "s") == ["study.toml"]
    assert bash("mbt", "show", "runs/small/b") == cells
    assert bash("mbt", "show", "runs/small/base/benchmark", "=", "ti") == [
        cell.removeprefix("runs/small/base/benchmark=") for cell in cells
    ]
    assert bash("mbt", "status", "") == ["small"]


def test_in_an_empty_folder_the_shipped_manifests_complete(bash, workplace):
    (workplace / "study.toml").unlink()

    assert bash("mbt", "check", "quick") == ["quickstart"]
    assert "tinyhop" in bash("mbt", "data", "fetch", "quickstart", "--benchmark", "")


def test_an_answer_is_right_after_an_edit(bash, workplace):
    line = ("mbt", "run", "study.toml", "--only", "base/prompt", "=")
    assert bash(*line) == ["answer", "metacognitive"]
    study = workplace / "study.toml"

    study.write_text(study.read_text().replace('"metacognitive"]', '"plain_answer"]'))
    assert bash("mbt", "run", "study.toml", "--only", "b") == ["base", "base/"]
    study.write_text(study.read_text().replace('"plain_answer"]', '"answer_example"]'))

    assert bash(*line) == ["answer", "answer_example"]


def test_an_answer_is_right_after_an_edit_of_what_is_extended(bash, workplace):
    study, base = workplace / "study.toml", workplace / "base.toml"
    study.rename(base)
    study.write_text('[study]\nextends = "base.toml"\nname = "child"\n')
    line = ("mbt", "run", "study.toml", "--only", "base/prompt", "=")
    assert bash(*line) == ["answer", "metacognitive"]

    base.write_text(base.read_text().replace('"metacognitive"]', '"answer_example"]'))

    assert bash(*line) == ["answer", "answer_example"]


def test_an_answer_is_right_after_an_optional_source_has_come(bash, workplace):
    study = workplace / "study.toml"
    late = '[[stage]]\nkind = "rollout"\nname = "late"\noptional = true\nsource = "late/{model}"\n'
    matrix = 'matrix = { benchmark = ["tiny"], split = ["validation"], model = ["parrot"] }\n'
    study.write_text(f"{study.read_text()}\n{late}{matrix}")
    line = ("mbt", "run", "study.toml", "--only", "la")
    assert bash(*line) == []

    (workplace / "late/parrot").mkdir(parents=True)

    assert bash(*line) == ["late", "late/"]


def test_while_the_manifest_is_wrong_its_stages_complete(bash, workplace):
    study = workplace / "study.toml"
    study.write_text(study.read_text().replace("samples = 2", "sampels = 2"))

    assert bash("mbt", "run", "study.toml", "--only", "s") == ["scores", "scores/"]


def test_a_cache_that_cannot_be_written_costs_only_time(ask):
    line = "mbt\nrun\nstudy.toml\n--only\nba"

    told = ask(
        _MBT_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD="4", MBT_CACHE="/proc/no/cache"
    )

    assert told == ["base", "base/"]


def test_a_warm_cache_imports_nothing_heavy(bash, workplace, surroundings):
    line = ("mbt", "run", "study.toml", "--only", "base/")
    first = bash(*line)
    code = (
        "import json, sys\nfrom mbt_cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"json.dump([m for m in {HEAVY!r} if m in sys.modules], sys.stderr)\n"
    )
    words = {"COMP_WORDS": "\n".join(line), "COMP_CWORD": "4", "_MBT_COMPLETE": "complete_bash"}

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=workplace,
        env={**surroundings, **words},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stderr) == []
    assert done.stdout.splitlines() == first


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("mbt run ", ['"study.toml"']),
        ("mbt run study.toml --only base/prompt=", ["answer", "metacognitive"]),
        ("mbt run study.toml --only=base/prompt=m", ["metacognitive", "metacognitive/"]),
        ("mbt run study.toml --only '!base/prompt=m", ["metacognitive", "metacognitive/"]),
    ],
)
def test_zsh_is_told_whole_words(ask, typed, expected):
    answer = " ".join(ask(_MBT_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed))

    word = typed.rpartition(" ")[2].removeprefix("'").rpartition("=")
    whole = [f'"{word[0]}{word[1]}{end}"' if word[1] else end for end in expected]
    assert answer == f"_arguments '*: :(({' '.join(whole)}))'"


def test_fish_is_told_whole_words(ask):
    asked = {"_MBT_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}

    assert ask(**asked, _TYPER_COMPLETE_ARGS="mbt run study.toml --only=base/prompt=") == [
        "--only=base/prompt=answer",
        "--only=base/prompt=metacognitive",
    ]
    assert ask(**asked, _TYPER_COMPLETE_ARGS="mbt run study.toml --set stage.base.sam") == [
        "stage.base.samples",
        "stage.base.sampling",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_to_source(ask, shell):
    assert f"_MBT_COMPLETE=complete_{shell}" in " ".join(ask(_MBT_COMPLETE=f"source_{shell}"))


def test_completion_is_installed_for_the_shell_that_asks(surroundings, workplace):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")

    subprocess.run(
        [bash, "--norc", "-c", "mbt --install-completion; true"],
        env={**surroundings, "HOME": str(workplace)},
        check=True,
    )

    (script,) = (workplace / ".bash_completions").iterdir()
    assert "complete -o default -F _mbt_completion mbt" in script.read_text()
    assert str(script) in (workplace / ".bashrc").read_text()


@pytest.fixture
def terminal(workplace, surroundings):
    if shutil.which("tmux") is None or shutil.which("bash") is None:
        pytest.skip("needs tmux and bash")
    opened = Tmux(workplace, {**surroundings, "PS1": "ready> ", "HISTFILE": "/dev/null"})
    opened.type('eval "$(_MBT_COMPLETE=source_bash mbt)"; PS1="set> "', "Enter")
    opened.until("\nset> ")
    yield opened
    opened.end()


def test_bash_completes_after_an_equals_sign(terminal):
    terminal.type("mbt run study.toml --only base/prompt=m", "Tab")

    terminal.until("--only base/prompt=metacognitive")


def test_bash_completes_an_address_from_its_stage(terminal):
    terminal.type("mbt run st", "Tab")
    terminal.until("set> mbt run study.toml")
    terminal.type("--only ba", "Tab")
    terminal.until("--only base")
    terminal.type("/", "Tab")
    terminal.until(f"--only {CELL}")
    terminal.type("a", "Tab", "-q")

    terminal.until(f"--only {CELL}answer -q")


def test_bash_completes_a_quoted_pattern_and_a_key(terminal):
    terminal.type("mbt run study.toml --only '!base/prompt=m", "Tab", "' --set study.s", "Tab")
    terminal.until("--only '!base/prompt=metacognitive' --set study.seed=")
    terminal.type("1", "Tab", "-q")

    terminal.until("--set study.seed=1 -q")
