"""A training that cannot go on says why and what to change."""

import errno
import re
import signal

import pytest

pytest.importorskip("torch")

import torch  # noqa: TID253

from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import TrainingJob, Weights
from mbt_cli.training.loop import last_checkpoint
from mbt_cli.training.problems import explained
from tests.integration.train.conftest import STUDY

JOB = TrainingJob(
    method={},
    address="sft/model=m",
    study="s",
    weights=Weights(model="m"),
    template={},
    recipe=Recipe(
        method="sft",
        tuning="full",
        dtype="float32",
        batch_size=8,
        device_batch_size=4,
        max_length=512,
    ),
    seed=1,
    examples="examples.parquet",
    folder="/runs/job",
    files="/runs/files",
)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        pytest.param(
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "out of memory at device_batch_size 4",
            "recipe.device_batch_size",
            id="memory of the GPU",
        ),
        pytest.param(
            RuntimeError("TensorBoardCallback requires tensorboard to be installed."),
            "`tracking.tensorboard` needs the package",
            "pip install tensorboard",
            id="a package",
        ),
        pytest.param(MemoryError(), "out of memory", "recipe.max_length", id="memory"),
        pytest.param(
            OSError(errno.ENOSPC, "No space left on device"), "disk is full", "free", id="disk"
        ),
        pytest.param(
            RuntimeError("[enforce fail at inline_container.cc] . unexpected pos 64 vs 0"),
            "disk is full",
            "free",
            id="disk, as torch says it",
        ),
    ],
)
def test_what_ran_out_is_named_with_what_to_change(error, message, hint):
    told = explained(error, JOB)

    assert message in told.message
    assert hint in told.hint


def test_an_error_of_our_own_making_keeps_its_traceback():
    assert explained(RuntimeError("shape mismatch"), JOB) is None


def test_a_checkpoint_that_a_crash_cut_off_is_not_resumed(tmp_path):
    for step, is_whole in ((4, True), (12, True), (20, False)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if is_whole:
            (tmp_path / f"checkpoint-{step}" / "mbt-whole").touch()

    assert last_checkpoint(tmp_path).name == "checkpoint-12"
    assert not (tmp_path / "checkpoint-20").exists()


def test_a_loss_that_is_no_number_stops_the_training(fresh):
    text = STUDY.replace("learning_rate = 1e-2", "learning_rate = 1e30, max_grad_norm = 0")
    place = fresh(text)

    ran = place.run("run", "study.toml", "--only", "base", "--only", "sft/variant=full")

    assert ran.code == 1
    assert "became nan at step" in ran.out or "became inf at step" in ran.out
    assert "lower `trainer.learning_rate`" in ran.out


def test_a_batch_that_does_not_divide_is_refused_before_anything_runs(fresh):
    place = fresh(STUDY.replace("device_batch_size = 2", "device_batch_size = 3"))

    ran = place.run("run", "study.toml", "--only", "base", "--only", "sft/variant=full")

    assert ran.code == 2
    assert "valid device_batch_size: 1, 2, 4" in ran.out
    assert not (place.folder / "runs").exists()


def test_rows_that_are_all_too_long_stop_the_training_with_the_count(fresh):
    place = fresh(STUDY.replace("max_length = 512", "max_length = 8"))

    ran = place.run("run", "study.toml", "--only", "base", "--only", "sft/variant=full")

    assert ran.code == 1
    assert re.search(r"no row is left to train on \(24 x over_long; the shortest has \d+ ", ran.out)


@pytest.mark.long
def test_other_data_does_not_resume_an_old_checkpoint(fresh):
    place = fresh()
    place.run("run", "study.toml", "--only", "base")
    address = "sft/model=tiny/variant=full"
    place.run_until_step(5, signal.SIGTERM, "train", "study.toml", "--only", address)

    ran = place.run("train", "study.toml", "--only", address, "--set", "stage.sft.max_samples=1")

    assert ran.code == 0, ran.out
    # one sample of 12 questions in batches of 4, twice
    assert place.rows(address)["step"].to_list() == [1, 2, 3, 4, 5, 6]
    logs = sorted(place.cell(address).glob("logs/*.train.log"))
    assert "resuming" not in logs[-1].read_text()
