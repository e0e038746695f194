"""The command of a training: on one device, with accelerate, and on every node of a job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mbt_cli.core.recipe import Launch, Recipe
from mbt_cli.errors import StageError
from mbt_cli.stages.train import check_batch, launch_environment, training_command
from mbt_cli.trainers.sft import SFT

MODULE = ["-m", "mbt_cli.training.sft", "/runs/job/job.json"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch"]
ACCELERATE += ["--config_file", "/runs/job/accelerate.yaml", "--mixed_precision", "no"]
NODES = {
    "multi_gpu": True,
    "use_fsdp": False,
    "num_processes": "$MBT_PROCESSES",
    "num_machines": "$SLURM_NNODES",
}


def command(environment=None, **launch):
    return training_command(
        Launch(**launch), "mbt_cli.training.sft", Path("/runs/job/job.json"), environment or {}
    )


def test_one_device_needs_plain_python():
    assert command() == [sys.executable, *MODULE]


def test_switches_that_are_off_are_omitted():
    words = command(accelerate="x", flags={"multi_gpu": True, "use_fsdp": False}, processes=4)

    assert words == [*ACCELERATE, "--multi_gpu", "--num_processes", "4", *MODULE]


def test_several_processes_form_one_group():
    words = command(accelerate="x", processes=2)

    assert words == [*ACCELERATE, "--num_processes", "2", "--multi_gpu", *MODULE]


def test_the_recipe_decides_the_precision_not_the_launcher():
    words = command(accelerate="x", flags={"mixed_precision": "bf16"}, processes=2)

    assert words == command(accelerate="x", processes=2)


def test_the_shell_does_not_change_how_a_training_runs():
    shell = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "WORLD_SIZE": "8", "HOME": "/h"}

    assert launch_environment(shell) == {"HOME": "/h"}


def test_every_node_runs_a_launcher_with_its_own_rank():
    words = command({"SLURM_NNODES": "2", "MBT_PROCESSES": "16"}, accelerate="x", flags=NODES)

    relay = [sys.executable, "-m", "mbt_cli.training.node_relay"]
    head, node = words.index("head"), words.index("node")
    assert words[: head + 2] == [*relay, "head", "srun"]
    assert {"--nodes=2", "--ntasks-per-node=1"} <= set(words[head:node])
    flags = ["--multi_gpu", "--num_processes", "16", "--num_machines", "2"]
    flags += ["--machine_rank", "$SLURM_NODEID"]
    assert words[node - 3 :] == [*relay, "node", *ACCELERATE, *flags, *MODULE]


def test_a_node_has_the_temporary_folder_of_its_job_and_leaves_nothing(tmp_path):
    own = tmp_path / "mbt-1"
    environment = {**os.environ, "SLURM_NODEID": "1", "SLURM_JOB_ID": "77"}
    environment["TMPDIR"] = str(own / "77" / "tmp")
    relay = [sys.executable, "-m", "mbt_cli.training.node_relay", "node"]
    shown = "touch $TMPDIR/kernel; flock -n ../77.lock true || echo held; stat -c %a $TMPDIR/../.."

    done = subprocess.run(
        [*relay, "bash", "-c", f"cd $TMPDIR/..; {shown}; exit 3"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["held", "700"], done.stderr
    assert done.returncode == 3
    assert not list(own.iterdir())


def test_a_given_rank_leaves_the_nodes_to_the_user():
    flags = {"multi_gpu": True, "num_machines": 2, "machine_rank": 1}

    words = command(accelerate="x", flags=flags, processes=2)

    rest = ["--num_machines", "2", "--machine_rank", "1", "--num_processes", "2"]
    assert words == [*ACCELERATE, "--multi_gpu", *rest, *MODULE]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MBT_PROCESSES": "2"}, "reads `$SLURM_NNODES`, which is not set in the environment"),
        (
            {"MBT_PROCESSES": "2", "SLURM_NNODES": "two"},
            "`num_machines` is `two`, from `$SLURM_NNODES`, which is not a whole number",
        ),
        (
            {"MBT_PROCESSES": "0", "SLURM_NNODES": "2"},
            "`num_processes` is `0`, from `$MBT_PROCESSES`, which is not a whole number of at",
        ),
        ({"MBT_PROCESSES": "-8", "SLURM_NNODES": "2"}, "`num_processes` is `-8`"),
        ({"MBT_PROCESSES": "auto", "SLURM_NNODES": "2"}, "`num_processes` is `auto`"),
        ({"MBT_PROCESSES": "", "SLURM_NNODES": "2"}, "`num_processes` is ``"),
        ({"MBT_PROCESSES": "9", "SLURM_NNODES": "2"}, "9 processes do not divide into 2 nodes"),
    ],
)
def test_missing_and_wrong_variables_are_reported(environment, message):
    with pytest.raises(StageError) as raised:
        command(environment, accelerate="x", flags=NODES)

    assert message in raised.value.message


@pytest.mark.parametrize(
    ("processes", "message"),
    [
        ("12", "`recipe.device_batch_size`: batch_size 64 does not divide into 12 devices"),
        ("nonsense", "`num_processes` is `nonsense`, from `$MBT_PROCESSES`"),
    ],
)
def test_a_batch_that_only_the_job_can_divide_is_refused_before_rows_are_made(processes, message):
    recipe = Recipe(
        method="sft",
        tuning="full",
        dtype="bfloat16",
        batch_size=64,
        max_length=512,
        launch={"accelerate": "multi_node", "flags": NODES},
    )
    environment = {"SLURM_NNODES": "2", "MBT_PROCESSES": processes}

    with pytest.raises(StageError) as raised:
        check_batch(recipe, SFT(), environment)

    assert message in raised.value.message
    check_batch(recipe, SFT(), {**environment, "MBT_PROCESSES": "16"})
