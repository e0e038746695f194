"""Checkpoints that are evaluated while their training runs, in other processes that are killed."""

import json
import random
import shutil
import signal
import time

import polars as pl
import pytest

from tests.fire.conftest import KILLS
from tests.integration.train.conftest import STUDY

HEAD = STUDY.partition('[[stage]]\nkind = "rollout"\nname = "trained"')[0]
CURVE = """
[[stage]]
kind = "rollout"
name = "curve"
checkpoints = { stage = "sft", where = { variant = "full", step = "all" } }
matrix = { benchmark = ["tiny"], split = ["validation"] }
prompt = "short.md"

[[stage]]
kind = "rollout"
name = "untrained"
matrix = { benchmark = ["tiny"], split = ["validation"], model = ["tiny"] }
prompt = "short.md"

[[stage]]
kind = "score"
name = "scores"
rollouts = ["untrained", "curve"]
metrics = ["answer_rate", "tokens"]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results"]
figures = [{ kind = "score_curves", metric = "answer_rate" }]
"""
ONLY = ("--only", "curve", "--only", "sft")
FULL = "sft/model=tiny/variant=full"
WATCH = ("watch", "study.toml", "--only", "curve")
STEPS = (4, 8, 12)


def curve_cell(step):
    return f"curve/benchmark=tiny/split=validation/model=tiny/variant=full/step={step}"


def published(study):
    found = study.cell(FULL).glob("step=*/lineage.json")
    return sorted(int(path.parent.name.partition("=")[2]) for path in found)


def evaluated_once(study, steps=STEPS):
    """Each step has one artifact, of 12 replies that were each asked for once."""
    assert published(study) == list(steps)
    for step in steps:
        lineage = study.lineage(curve_cell(step))
        asked = lineage["requests"]
        assert asked["sent"] + asked["reused"] == 12, asked
        assert study.rows(curve_cell(step)).height == 12
        read = lineage["inputs"][f"{FULL}/step={step}"]
        assert read["fingerprint"] == study.lineage(f"{FULL}/step={step}")["fingerprint"]
    assert not (study.folder / "runs" / ".replaced").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study after `mbt run` alone, with its evaluations beside the training."""
    from tests.integration.train.conftest import make_place

    beside = CURVE.replace('name = "curve"', 'name = "curve"\nbeside = { gpus = [] }')
    study = make_place(tmp_path_factory.mktemp("steps"), HEAD + beside)
    ran = study.run("run", "study.toml")
    assert ran.code == 0, ran.out
    return study, ran.out


def test_one_run_trains_evaluates_each_step_and_draws_the_curve(finished):
    study, out = finished

    evaluated_once(study)
    assert "waiting for the next checkpoint" in out
    files = study.cell("tables") / "files"
    assert (files / "score_curves.png").stat().st_size > 5_000
    table = pl.read_parquet(files / "main_results.parquet")
    assert table["step"].to_list() == [None, "4", "8", "12"]


def test_the_checkpoint_of_the_last_step_is_the_result(finished):
    study, _ = finished
    last, result = (study.cell(cell) / "files" / "checkpoint" for cell in (f"{FULL}/step=12", FULL))

    assert {path.name for path in last.iterdir()} == {path.name for path in result.iterdir()}
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (last / name).read_bytes() == (result / name).read_bytes(), name
    first = study.cell(f"{FULL}/step=4") / "files" / "checkpoint" / "model.safetensors"
    assert first.read_bytes() != (last / "model.safetensors").read_bytes()


def test_the_same_command_does_nothing_again(finished):
    study, _ = finished

    ran = study.run("run", "study.toml")

    assert ran.code == 0, ran.out
    assert "0 cells run" in ran.out
    assert "0 model calls" in ran.out


@pytest.mark.long
def test_named_steps_of_a_lora_and_one_that_is_never_reached(finished):
    study, _ = finished
    text = (HEAD + CURVE).replace('variant = "full", step = "all"', 'variant = "lora", step = STEP')
    (study.folder / "lora.toml").write_text(text.replace("STEP", "[3, 99]"))
    lora = study.cell("sft/model=tiny/variant=lora")
    late = study.run("train", "lora.toml")
    shutil.rmtree(lora)

    trained = study.run("train", "lora.toml")

    assert late.code == 1
    assert f"move `{lora.relative_to(study.folder)}` away" in late.out

    assert trained.code == 1
    assert "ended after 12 steps and has not published the checkpoint of step 99" in trained.out
    folder = study.cell("sft/model=tiny/variant=lora/step=3") / "files" / "checkpoint"
    assert (folder / "model.safetensors").is_file()  # merged into the model
    assert json.loads((folder / "config.json").read_bytes())["dtype"] == "float32"


@pytest.mark.parametrize("seed", range(max(1, KILLS // 10)))
def test_killed_trainings_and_watches_evaluate_each_step_once(fresh, seed):
    study, draws = fresh(HEAD + CURVE), random.Random(seed)
    assert study.run("run", "study.toml", "--only", "base").code == 0
    train = ("train", "study.toml", "--only", FULL)

    for command in (train, WATCH, train, WATCH):
        process = study.start(*command)
        beside = study.start(*(WATCH if command == train else train))
        time.sleep(draws.uniform(3, 15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        beside.send_signal(signal.SIGTERM)
        beside.communicate(timeout=300)
    watch = study.start(*WATCH)
    trained = study.run(*train)
    out, _ = watch.communicate(timeout=300)

    assert trained.code == 0, trained.out
    assert watch.returncode == 0, out
    evaluated_once(study)


def test_a_failed_training_ends_the_watch_after_what_is_there(fresh):
    text = (HEAD + CURVE).replace("save_every_steps = 4", "save_every_steps = 1")
    study = fresh(text.replace("learning_rate = 1e-2", "learning_rate = 1e18, max_grad_norm = 0"))
    assert study.run("run", "study.toml", "--only", "base").code == 0
    watch = study.start(*WATCH)

    trained = study.run("train", "study.toml", "--only", FULL)
    out, _ = watch.communicate(timeout=300)

    assert trained.code == 1, trained.out
    assert watch.returncode == 1, out
    assert f"the training `{FULL}` has failed" in out
    for step in published(study):
        assert study.rows(curve_cell(step)).height == 12
