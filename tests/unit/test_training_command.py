"""The command of a training: on one device, with accelerate, and on every node of a job."""

import sys
from pathlib import Path

import pytest

from mbt_cli.core.recipe import Launch
from mbt_cli.errors import StageError
from mbt_cli.stages.train import launch_environment, training_command

MODULE = ["-m", "mbt_cli.training.sft", "/runs/job/job.json"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch"]
ACCELERATE += ["--config_file", "/runs/job/accelerate.yaml", "--mixed_precision", "no"]
NODES = {"multi_gpu": True, "use_fsdp": False, "num_machines": "$SLURM_NNODES"}


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
    words = command({"SLURM_NNODES": "2"}, accelerate="x", flags=NODES)

    relay = [sys.executable, "-m", "mbt_cli.training.node_relay"]
    head, node = words.index("head"), words.index("node")
    assert words[: head + 2] == [*relay, "head", "srun"]
    assert {"--nodes=2", "--ntasks-per-node=1"} <= set(words[head:node])
    flags = ["--multi_gpu", "--num_machines", "2", "--machine_rank", "$SLURM_NODEID"]
    assert words[node - 3 :] == [*relay, "node", *ACCELERATE, *flags, *MODULE]


def test_a_given_rank_leaves_the_nodes_to_the_user():
    flags = {"num_machines": 2, "machine_rank": 1}

    words = command(accelerate="x", flags=flags)

    assert words == [*ACCELERATE, "--num_machines", "2", "--machine_rank", "1", *MODULE]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "reads `$SLURM_NNODES`, which is not set in the environment"),
        ({"SLURM_NNODES": "two"}, "`num_machines` is `two`, which is not a whole number"),
    ],
)
def test_missing_and_wrong_variables_are_reported(environment, message):
    with pytest.raises(StageError) as raised:
        command(environment, accelerate="x", flags=NODES)

    assert message in raised.value.message
