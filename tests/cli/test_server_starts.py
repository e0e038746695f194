"""How often one run starts servers, and what runs beside them."""

import sys

import pytest

from tests.cli.pretender import write_vllm_preset

MODEL = """
[models.{name}]
preset = "small"
sampling = "plain"
serve = {{ max_model_len = {context} }}
place = {{ environment = {{ MBT_TEST_MARK = "{mark}" }} }}
"""
STUDY = """
[study]
name = "starts"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 64

[benchmarks.tiny]
kind = "tinyhop"
limit = 2
"""
ROLLOUT = """
[[stage]]
kind = "rollout"
name = "{name}"
matrix = {{ benchmark = "tiny", split = {splits}, model = {models} }}
prompt = "answer"
"""
TRAINING = """
[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = "one" }
data = { stage = "base", where = { split = "train" } }
target = "reply"
launch = { python = "./python" }
"""
PYTHON = """#!{python}
from pathlib import Path
servers = 0
for environment in Path("/proc").glob("[0-9]*/environ"):
    try:
        servers += b"MBT_TEST_MARK={mark}" in environment.read_bytes()
    except OSError:
        pass
with open("{mark}/servers", "a") as file:
    file.write(str(servers))
raise SystemExit("the training fails")
"""


@pytest.fixture
def study(workplace):
    """Write a study of two models, each of which has a server of its own."""
    write_vllm_preset(workplace)

    def write(*stages):
        models = [
            MODEL.format(name=name, context=context, mark=workplace)
            for name, context in (("one", 1024), ("two", 2048))
        ]
        (workplace / "study.toml").write_text(STUDY + "".join([*models, *stages]))

    return write


def test_a_run_starts_a_server_once_for_all_cells_of_its_model(mbt, study, workplace):
    splits, models = '["train", "validation"]', '["one", "two"]'
    study(
        ROLLOUT.format(name="base", splits=splits, models=models),
        ROLLOUT.format(name="again", splits='"validation"', models=models),
    )

    done = mbt("run", "study.toml", "--no-cache")

    assert done.code == 0, done.stderr
    assert len(list(workplace.glob("runs/starts/**/rows.parquet"))) == 2 + 4 + 2
    logs = sorted(workplace.glob("runs/starts/**/*.server.log"))
    assert [path.parents[1].name for path in logs] == ["model=one", "model=two"]


def test_no_server_runs_beside_a_training(mbt, study, workplace):
    study(ROLLOUT.format(name="base", splits='"train"', models='"one"'), TRAINING)
    python = workplace / "python"
    python.write_text(PYTHON.format(python=sys.executable, mark=workplace))
    python.chmod(0o755)

    done = mbt("run", "study.toml")

    assert done.code == 1
    assert list(workplace.glob("runs/starts/base/**/*.server.log"))
    assert set((workplace / "servers").read_text()) == {"0"}
