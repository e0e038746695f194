# ruff: noqa: TID253
"""One process and several train alike: batches, losses, and the number types of the weights."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")

from datasets import Dataset
from safetensors.torch import load_file
from transformers.integrations import deepspeed
from trl import SFTConfig, SFTTrainer

from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import Weights
from mbt_cli.training import models
from mbt_cli.training.loop import prepare
from mbt_cli.training.problems import TrainingError
from tests.integration.train.conftest import STUDY
from tests.integration.train.tiny_models import tiny_model

FULL = "sft/model=tiny/variant=full"
REPLIES = (
    '["It is <answer>Oslo</answer>", "The documents name the capital first: <answer>Rome</answer>"]'
)
# 24 rows: two batches of 10, and one of 4, which no number of processes but 1 and 2 divides
UNEVEN = STUDY.replace(
    '["It is <answer>Oslo</answer>", "It is <answer>Rome</answer>"]', REPLIES
).replace("batch_size = 4\ndevice_batch_size = 2", "batch_size = 10\ndevice_batch_size = 2")
TWO = 'stage.sft.launch={ accelerate = "multi_gpu", processes = 2 }'


def trained(place, *options):
    shutil.rmtree(place.cell(FULL), ignore_errors=True)  # `launch` makes no finished cell stale
    ran = place.run("train", "study.toml", "--only", FULL, *options)
    assert ran.code == 0, ran.out
    return place.rows(FULL), place.lineage(FULL)["notes"]["training"]


@pytest.fixture
def uneven(fresh):
    place = fresh(UNEVEN)
    assert place.run("run", "study.toml", "--only", "base").code == 0
    return place


def test_two_processes_compute_the_same_steps_as_one(uneven):
    alone, _ = trained(uneven)
    # the same batches of 10, now 5 rows on each process at once: the last 4 do not fill them
    wide = "stage.sft.recipe.device_batch_size=5"
    shared, told = trained(uneven, "--set", TWO, "--set", wide)

    assert told["processes"] == 2
    assert shared["step"].to_list() == alone["step"].to_list() == [1, 2, 3, 4, 5, 6]
    for column in ("loss", "grad_norm"):
        assert shared[column].to_list() == pytest.approx(alone[column].to_list(), rel=1e-4)


@pytest.mark.long
def test_a_checkpoint_has_the_recipes_type_and_its_weights_were_trained_in_another(uneven):
    line = 'stage.sft.recipe.master_weights="float32"'
    mixed = ("--set", 'stage.sft.recipe.dtype="bfloat16"', "--set", "stage.sft.trainer.bf16=true")

    _, told = trained(uneven, "--set", line, *mixed)

    assert told["master_weights"] == "float32"
    saved = load_file(uneven.cell(FULL) / "files/checkpoint/model.safetensors")
    assert {str(weight.dtype) for weight in saved.values()} == {"torch.bfloat16"}


@pytest.fixture
def trainer_of(tmp_path):
    """TRL's trainer on a tiny model, made as a training makes it."""

    def made(recipe, **arguments):
        weights = Weights(model=str(tiny_model(tmp_path / "tiny")))
        trainer = SFTTrainer(
            model=models.load_model(weights, recipe, to_train=True),
            args=SFTConfig(
                output_dir=str(tmp_path / "out"),
                lr_scheduler_type="constant",
                per_device_train_batch_size=2,
                num_train_epochs=1,
                max_length=None,
                dataset_kwargs={"skip_prepare_dataset": True},
                gradient_checkpointing=False,
                use_cpu=True,
                report_to="none",
                **arguments,
            ),
            train_dataset=Dataset.from_list(
                [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]}] * 6
            ),
            peft_config=models.adapter_config(recipe),
        )
        prepare(trainer, recipe)
        return trainer

    return made


def recipe_of(**settings):
    given = {"method": "sft", "tuning": "full", "dtype": "bfloat16", "batch_size": 2}
    lora = {"r": 4, "target_modules": "all-linear"}
    return Recipe(**{**given, "device_batch_size": 2, "max_length": 8, "lora": lora, **settings})


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize(("kept", "moved"), [("float32", True), ("bfloat16", False)])
def test_small_updates_are_kept_in_float32_and_lost_in_bfloat16(trainer_of, tuning, kept, moved):
    trainer = trainer_of(recipe_of(tuning=tuning, master_weights=kept), learning_rate=1e-6)
    trained = {n: w for n, w in trainer.model.named_parameters() if w.requires_grad}
    before = {name: weight.detach().clone() for name, weight in trained.items()}

    trainer.train()

    state = [one["exp_avg"] for one in trainer.optimizer.state.values()]
    assert {str(t.dtype) for t in (*trained.values(), *state)} == {f"torch.{kept}"}
    # bfloat16 has steps of 7.6e-6 at 0.001, and Adam moves a weight by 1e-6
    changed = [(trained[n] != w)[w.abs() > 1e-3].float().mean() for n, w in before.items()]
    changed = [float(share) for share in changed if share == share]
    assert (min(changed) > 0.5) if moved else (max(changed) == 0)


@pytest.mark.parametrize("kept", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_sharded_weights_are_trained_as_whole_ones(tmp_path, kept):
    script = [str(Path(__file__).with_name("fsdp_on_cpu.py")), str(tiny_model(tmp_path / "tiny"))]
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    fsdp = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    }
    told = []
    for how, variables in (([], {}), (several, fsdp)):
        ran = subprocess.run(
            [sys.executable, *how, *script, str(tmp_path), kept],
            env={**os.environ, **variables, "PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        lines = [line for line in ran.stdout.splitlines() if line.startswith('{"distributed"')]
        assert len(lines) == 1, ran.stdout + ran.stderr
        told.append(json.loads(lines[0]))
    whole, sharded = told

    assert (whole["distributed"], sharded["distributed"]) == ("NO", "FSDP")
    assert whole["types"] == sharded["types"] == [f"torch.{kept}"]
    assert len(whole["losses"]) == 3
    assert whole["losses"][-1] < whole["losses"][0]
    assert sharded["losses"] == pytest.approx(whole["losses"], rel=5e-3)
    assert sharded["eval_loss"] == pytest.approx(whole["eval_loss"], rel=5e-3)
    assert sharded["questions"] == whole["questions"] == 3


def test_a_batch_of_another_size_is_refused(trainer_of):
    with pytest.raises(TrainingError, match="would compute batches of 2"):
        trainer_of(recipe_of(batch_size=8))


@pytest.mark.parametrize("kept", [None, "float32"])
def test_an_adapter_trains_on_weights_in_four_bits(trainer_of, kept):
    pytest.importorskip("bitsandbytes", reason="needs the extra `qlora`")
    recipe = recipe_of(tuning="qlora", master_weights=kept)
    trainer = trainer_of(recipe, learning_rate=1e-2, logging_steps=1)
    types = {type(weight).__name__ for weight in trainer.model.parameters()}
    trained = {str(w.dtype) for w in trainer.model.parameters() if w.requires_grad}

    trainer.train()

    assert "Params4bit" in types
    assert trained == {"torch.float32" if kept else "torch.bfloat16"}
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]


def test_whole_weights_load_on_one_process_although_zero_3_is_on():
    class Config:
        config: ClassVar[dict[str, int]] = {}

        def is_zero3(self):
            return True

    config = Config()
    deepspeed.set_hf_deepspeed_config(config)
    try:
        with models.on_this_process_alone():
            assert not deepspeed.is_deepspeed_zero3_enabled()
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()
