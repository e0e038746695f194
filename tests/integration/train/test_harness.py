"""Programs of others evaluate the checkpoints of a real training, beside it."""

import sys

import polars as pl
import pytest

from tests.integration.train.conftest import make_place
from tests.integration.train.test_steps import HEAD, STEPS, published

PROGRAM = '''
"""Loads the weights of a checkpoint, and tells how large they are."""

import json
import pathlib
import sys

from safetensors import safe_open

checkpoint, output = map(pathlib.Path, sys.argv[1:])
with safe_open(checkpoint / "model.safetensors", "pt") as weights:
    norm = sum(float(weights.get_tensor(name).double().square().sum()) for name in weights.keys())
(output / "norm.json").write_text(json.dumps({"norm": norm**0.5}))
'''
TABLES = f"""
[harnesses.norm]
argv = ["{sys.executable}", "norm.py", "{{checkpoint}}", "{{output}}"]
results = "norm.json"
unit = "units"
metrics = {{ norm = "norm" }}

"""
STAGES = """
[[stage]]
kind = "harness"
name = "evals"
checkpoints = { stage = "sft", where = { variant = "full", step = "all" } }
matrix = { harness = ["norm"] }
beside = { gpus = [] }

[[stage]]
kind = "harness"
name = "last"
checkpoints = { stage = "sft", where = { variant = "full" } }
matrix = { harness = ["norm"] }

[[stage]]
kind = "report"
name = "tables"
scores = ["evals", "last"]
tables = ["main_results"]
figures = ["score_curves"]
"""


@pytest.mark.long
def test_a_program_evaluates_each_step_while_the_model_trains(tmp_path):
    head, stages, rest = HEAD.partition("[[stage]]")
    study = make_place(tmp_path, head + TABLES + stages + rest + STAGES)
    (study.folder / "norm.py").write_text(PROGRAM)

    ran = study.run("run", "study.toml")

    assert ran.code == 0, ran.out
    assert published(study) == list(STEPS)
    cell = "evals/model=tiny/variant=full/harness=norm"
    found = {step: study.rows(f"{cell}/step={step}")["value"][0] for step in STEPS}
    assert len(set(found.values())) == len(STEPS)  # the weights move
    # without a step, the last checkpoint is evaluated
    assert study.rows("last/model=tiny/variant=full/harness=norm")["value"][0] == found[12]
    assert "waiting for the next checkpoint" in ran.out
    files = study.cell("tables") / "files"
    table = pl.read_parquet(files / "main_results.parquet")
    assert set(table["step"].to_list()) == {None, "4", "8", "12"}
    assert (files / "score_curves.png").is_file()
