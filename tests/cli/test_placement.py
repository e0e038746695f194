"""The placement of models as `show`, `plan`, `submit` and `run` tell and use it."""

import json
import os
import re

import pytest

from tests.cli.terminal import OnTerminal

STUDY = """
[study]
name = "placed"
seed = 1
max_failed_share = 0.5

[sampling.s]
temperature = 0
max_tokens = 64

[models.big]
preset = "qwen3-32b"
sampling = "s"

[benchmarks.tinyhop]
kind = "tinyhop"

[[stage]]
kind = "rollout"
name = "base"
prompt = "answer"
samples = 1
matrix = { benchmark = "tinyhop", split = "validation", model = "big" }
"""


@pytest.fixture
def path(workplace):
    """Writes the study, and a PATH with an `nvidia-smi` that lists some GPUs."""
    (workplace / "study.toml").write_text(STUDY)
    folder = workplace / "bin"
    folder.mkdir()

    def make(count: int, mebibytes: int) -> str:
        lines = "".join(f"echo '{n}, GPU-{n}, {mebibytes}'\n" for n in range(count))
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
        (folder / "nvidia-smi").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return make


@pytest.fixture
def cluster(workplace):
    """Writes a cluster's preset."""

    def write(name: str, gpu_job: str) -> str:
        (workplace / "presets/slurm").mkdir(parents=True, exist_ok=True)
        file = workplace / f"presets/slurm/{name}.toml"
        file.write_text(f'[job]\ntime = "01:00:00"\n[gpu_job]\n{gpu_job}\n[small_job]\n')
        return name

    return write


def test_show_tells_the_choice_and_its_numbers(mbt, path):
    shown = mbt("show", "study.toml", "--json", PATH=path(4, 143_771))

    flag = json.loads(shown.out)["models"]["big"]["flags"]["placement"]
    assert flag["from"] == "chosen by mbt"
    assert "on 4 GPUs of 140.4 GiB: tensor parallel 1, 4 replicas" in flag["value"]
    assert "weights 61.0, vLLM 7.0, cache 58.3 GiB" in flag["value"]


def test_a_plan_places_models_on_the_cluster_and_not_on_this_machine(mbt, path, cluster):
    name = cluster("mine", "gpus = 8\ngpu_memory_gb = 80")

    here = json.loads(mbt("plan", "study.toml", PATH=path(2, 81_559)).out)
    there = json.loads(mbt("plan", "study.toml", "--preset", name, PATH=path(2, 81_559)).out)

    assert [job["resources"]["gpus"] for job in here["jobs"]] == [0, 2]
    assert [job["resources"]["gpus"] for job in there["jobs"]] == [0, 8]
    assert there["placements"][0]["tensor_parallel"] == 2
    assert there["placements"][0]["replicas"] == 4
    assert here["fingerprint"] == there["fingerprint"]


def test_the_command_below_a_plan_submits_to_what_it_was_made_for(workplace, cluster):
    (workplace / "study.toml").write_text(STUDY)
    name = cluster("mine", "gpus = 8\ngpu_memory_gb = 80")

    for preset, words in ((name, "--slurm --preset mine"), ("two-boxes", "--ssh --preset")):
        plan = OnTerminal(workplace, "plan", "study.toml", "--preset", preset)
        assert plan.finish() == 0
        assert f"submit: mbt plan study.toml | mbt submit {words}" in plan.shown


def test_a_small_gpu_of_this_machine_stops_no_plan(mbt, path):
    planned = mbt("plan", "study.toml", PATH=path(1, 24_564))

    assert planned.code == 0
    assert json.loads(planned.out)["placements"][0]["tensor_parallel"] == 2


def test_a_model_that_cannot_fit_is_refused_before_anything_is_booked(mbt, path, cluster):
    name = cluster("small", "gpus = 1\ngpu_memory_gb = 24")

    refused = mbt("plan", "study.toml", "--preset", name, PATH=path(8, 81_559))

    assert refused.code == 2
    assert "`Qwen/Qwen3-32B` does not fit on 1 GPU of 23.76 GiB" in refused.err
    assert "61.0 GiB weights" in refused.err


def test_submit_places_models_on_the_gpus_that_it_books(mbt, path, cluster, workplace):
    plan = mbt("plan", "study.toml", PATH=path(2, 81_559))
    (workplace / "plan.json").write_text(plan.out)
    large = cluster("large", "gpus = 8\ngpu_memory_gb = 80")
    small = cluster("small", "gpus = 2\ngpu_memory_gb = 24")

    booked = mbt("submit", "plan.json", "--slurm", "--preset", large, "--dry-run")
    refused = mbt("submit", "plan.json", "--slurm", "--preset", small, "--dry-run")

    assert "#SBATCH --gpus-per-node=8" in booked.out
    assert "use fewer GPUs than the preset books" not in booked.err
    assert refused.code == 2
    assert "does not fit on 2 GPUs of 23.76 GiB" in refused.err


def test_a_model_that_one_node_cannot_hold_books_several(mbt, path, cluster, workplace):
    plan = mbt("plan", "study.toml", PATH=path(2, 81_559))
    (workplace / "plan.json").write_text(plan.out)
    name = cluster("wide", "gpus = 2\ngpu_memory_gb = 24\nnodes = 4")

    booked = mbt("submit", "plan.json", "--slurm", "--preset", name, "--dry-run")

    assert booked.code == 0, booked.err
    script = booked.out.partition("# ---- base")[2]
    nodes = int(re.search(r"#SBATCH --nodes=(\d+)", script)[1])
    assert 1 < nodes <= 4
    assert "#SBATCH --gpus-per-node=2" in script
    assert "export MBT_NODES=" in script
    assert "ray" not in script


def test_a_run_on_gpus_that_are_too_small_is_refused_before_it_starts(mbt, path):
    refused = mbt("run", "study.toml", PATH=path(1, 24_564))

    assert refused.code == 2
    assert "does not fit on 1 GPU of 23.99 GiB" in refused.err
