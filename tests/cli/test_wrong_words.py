"""Command lines that are wrong: what is typed, the words wanted, the exit code."""

import subprocess
import sys

import pytest

from tests.cli.wrong import Wrong, held, rows, typed

NEAREST = "the nearest are `base/benchmark=tiny/split=validation/model=parrot/prompt=answer`"

VERBS_AND_OPTIONS = (
    Wrong("an unknown verb", "chekc study.toml", ["no such command `chekc`", "`check`", "--help"]),
    Wrong("an unknown verb below data", "data fetsh", ["`fetsh`", "`fetch`", "mbt data --help"]),
    Wrong("an unknown option", "run study.toml --dryrun", ["--dryrun", "--dry-run", "mbt run --"]),
    Wrong(
        "an option before its verb",
        "--set study.seed=2 check study.toml",
        ["no such option: --set", "options of a command follow it"],
    ),
    Wrong("a manifest left out", "run", ["missing argument `manifest`", "mbt run --help"]),
    Wrong(
        "a manifest too many",
        "run study.toml two.toml",
        ["too many arguments: (two.toml)", "mbt run --help"],
    ),
    Wrong("an option without its value", "run study.toml --only", ["`--only` requires an arg"]),
    Wrong("a word for a number", "compare a b --resamples many", ["`--resamples`", "whole number"]),
    Wrong("too small a number", "plan study.toml --max-cells 0", ["must be at least 1"]),
    Wrong("nothing to check", "check", ["no manifest given", "mbt check "]),
    Wrong("nothing to plan", "plan", ["no manifest given", "mbt plan "]),
    Wrong("nowhere to export to", "export runs", ["missing option `--to`", "mbt export --help"]),
    Wrong("quiet and verbose", "run study.toml -q -v", ["exclude each other", "leave one out"]),
    Wrong("hours of nothing", "plan study.toml --max-hours 0", ["must be at least 0.1"]),
    Wrong("fewer than no questions", "compare a b --show -3", ["`--show`", "must be at least 0"]),
    Wrong(
        "a number half named",
        "report study.toml --trace main_results 1",
        ["`--trace` requires 3 arguments", "mbt report --help"],
    ),
    Wrong(
        "a number as JSON",
        "report study.toml --trace main_results 1 tokens --json",
        ["`--trace` and `--json` exclude each other"],
    ),
    Wrong("a question of the page", "view --question q1", ["needs `--terminal`", "search for"]),
    Wrong("a page in the terminal", "view --terminal --serve", ["exclude each other"]),
    Wrong("an unknown topic", "help zzz", ["no help on `zzz`", "`manifest`, `metrics`"]),
    Wrong(
        "semicolons for init",
        "init x.toml --kind embedded --questions q.csv -y",
        ["`q.csv` is separated by semicolons", "save it with commas"],
        files={"q.csv": "question;answer\nWhat?;That\n"},
    ),
    Wrong(
        "columns that init does not know",
        "init x.toml --kind embedded --questions q.csv -y",
        ["the columns here are `nr`, `frage`, `antwort`: rename those of questions and answers"],
        files={"q.csv": "nr,frage,antwort\n1,Was?,Das\n"},
    ),
    Wrong(
        "no such preset for init",
        "init x.toml --kind gpu --model llama-3 -y",
        ["no model preset `llama-3`", "give a name on the hub (ORG/NAME), or a preset: there are"],
    ),
    Wrong(
        "hosts that are not a table",
        "plan study.toml --preset boxes",
        ['line 1: `hosts`: `box1`: must be a table, such as `{ "box1" = 8 }`'],
        files={"presets/ssh/boxes.toml": 'hosts = "box1"\n'},
    ),
    Wrong("no kind of machine", "init x.toml --kind laptop", ["--kind embedded|gpu|cluster|api"]),
)
ONLY = (
    Wrong("a misspelled stage", "run study.toml --only bas", ["`--only bas` matches", NEAREST]),
    Wrong("a misspelled axis", "run study.toml --only base/modle=parrot", ["modle", NEAREST]),
    Wrong("a misspelled value", "run study.toml --only base/model=parot", ["parot", NEAREST]),
    Wrong(
        "cells of another verb",
        "rollout study.toml --only scores",
        [
            "cells of kind score",
            "which `mbt rollout` does not make",
            "mbt score study.toml --only scores",
        ],
    ),
    Wrong(
        "everything left out",
        "run study.toml --only base --only !base",
        ["`--only` selects no cell", "`!`"],
    ),
    Wrong("a kind that is not there", "train study.toml", ["has no train stage", "it has judge"]),
)
SET = (
    Wrong("no value", "run study.toml --set study.seed", ["is not KEY=VALUE", "study.seed=7"]),
    Wrong("no key", "run study.toml --set =3", ["`--set =3` is not KEY=VALUE"]),
    Wrong("an unknown key", "run study.toml --set study.sead=3", ["study.sead", "mean `seed`?"]),
    Wrong("an unknown table", "run study.toml --set studdy.seed=3", ["studdy", "mean `study`?"]),
    Wrong(
        "a wrong type", "run study.toml --set study.seed=abc", ["`study.seed`: `abc`", "(from `--"]
    ),
    Wrong(
        "a key of a stage alone",
        "run study.toml --set samples=3",
        ["`samples`: is a key of stages: `stage.NAME.samples`"],
    ),
    Wrong("through a number", "run study.toml --set study.seed.x=3", ["is not a table", "seed=3"]),
    Wrong("an unknown stage", "run study.toml --set stage.bse.samples=3", ["`bse`", "`base`"]),
    Wrong(
        "a list without quotes",
        "check study.toml --set stage.base.matrix.model=[a,b]",
        ["`[a,b]`", "each text of a list stands in quotes"],
    ),
    Wrong("a stage alone", "run study.toml --set stage.base=3", ["stage.NAME.KEY=VALUE"]),
    Wrong("two lines", ["check", "study.toml", "--set", "study.seed=1\nx=2"], ["`study.seed`: `1"]),
)
SHARDS = (
    Wrong("a shard without its number", "run study.toml --shard 3", ["is not a shard", "`3/8`"]),
    Wrong("a shard too far", "run study.toml --shard 9/8", ["`9/8` is not a shard", "1 to 8"]),
)
STUDIES = (
    Wrong("status of nothing", "status", ["nothing was run or submitted from `runs`", "mbt run"]),
    Wrong("status of no study", "status smal", ["nothing of a study `smal`", "mbt run"]),
    Wrong("logs of nothing", "logs base/model=x", ["nothing was run or submitted", "mbt run"]),
    Wrong("cancel nothing", "cancel smal", ["nothing of a study `smal`", "mbt run"]),
    Wrong("a view of nothing", "view", ["no report below `runs`", "mbt report MANIFEST"]),
    Wrong("a view of nowhere", "view nowhere", ["folder or study `nowhere`", "mbt run"]),
    Wrong("an unknown folder", "show runs/x", ["no folder `runs/x`", "runs/STUDY/STAGE"]),
    Wrong(
        "a comparison of nothing", "compare runs/a runs/b", ["`runs/a` contains no finished cell"]
    ),
    Wrong("an export of nothing", "export nowhere --to out", ["no folder `nowhere`", "runs/STUDY"]),
    Wrong("a plan that is no file", "submit no.json --slurm", ["no file `no.json`", "--json >"]),
    Wrong(
        "no place to run",
        "submit no.json",
        ["`--slurm`, `--ssh`, `--sky`, `--sagemaker PRESET`, `--local N` or", "mbt submit --slurm"],
    ),
    Wrong(
        "a manifest for a plan",
        "submit study.toml --local 1",
        ["does not contain a plan", "mbt plan MAN"],
    ),
    Wrong("an unknown model", "data fetch study.toml --model parot", ["`parot`", "mean `parrot`"]),
    Wrong("an unknown data set", "data fetch study.toml --benchmark tinny", ["`tinny`", "`tiny`"]),
    Wrong("presets nowhere", "check study.toml --presets no", ["no folder `no` for presets"]),
)
PLANS = (
    Wrong(
        "no JSON",
        "submit p.json --local 1",
        ["`p.json` does not contain a plan"],
        files={"p.json": "x"},
    ),
    Wrong(
        "no plan", "submit p.json --local 1", ["does not contain a plan"], files={"p.json": "[]"}
    ),
    Wrong(
        "bytes for a plan",
        "submit p.json --local 1",
        ["`p.json` does not contain a plan"],
        files={"p.json": b"\x7fELF\x00\xff"},
    ),
    Wrong(
        "a plan of another version",
        "submit p.json --local 1",
        ["a plan of version 9; this mbt reads version 1", "mbt plan MANIFEST"],
        files={"p.json": '{"schema_version": 9}'},
    ),
    Wrong(
        "a plan with keys left out",
        "submit p.json --local 1",
        ["`p.json` has 5 problems", "`study`: is required", "make a new plan"],
        files={"p.json": '{"schema_version": 1}'},
    ),
)


@rows(*VERBS_AND_OPTIONS, *ONLY, *SET, *SHARDS, *STUDIES, *PLANS)
def test_a_wrong_command_line_says_what_to_type(wrong, tmp_path, capfd):
    wrong.prepare(tmp_path)

    held(wrong, typed(wrong.words_typed, tmp_path, wrong.env, capfd))


def test_a_plan_that_was_overtaken_is_refused(tmp_path, capfd):
    Wrong("", "", ()).prepare(tmp_path)
    plan = typed(["plan", "study.toml"], tmp_path, {}, capfd).out
    wrong = Wrong(
        "an edited manifest",
        "submit p.json --local 1",
        ["`study.toml`, or a file that it names, has changed", "mbt plan study.toml"],
        edits={"samples = 2": "samples = 1"},
        files={"p.json": plan},
    )
    wrong.prepare(tmp_path)

    held(wrong, typed(wrong.words_typed, tmp_path, {}, capfd))


def test_no_sbatch_is_said_before_anything_is_submitted(tmp_path, capfd):
    Wrong("", "", ()).prepare(tmp_path)
    plan = typed(["plan", "study.toml"], tmp_path, {}, capfd).out
    wrong = Wrong("no Slurm", "submit p.json --slurm --preset one-gpu", ["`sbatch`"], code=1)
    (tmp_path / "p.json").write_text(plan)

    held(wrong, typed(wrong.words_typed, tmp_path, {"PATH": str(tmp_path)}, capfd))


@pytest.mark.parametrize("arguments", [(), ("data",)])
def test_a_verb_alone_shows_its_help_and_is_no_success(arguments):
    done = subprocess.run(
        [sys.executable, "-m", "mbt_cli", *arguments], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert done.stdout == ""
    assert "Commands:" in done.stderr
