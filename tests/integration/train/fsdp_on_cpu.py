# ruff: noqa: TID253, T201
"""Train three steps, evaluate, print types and losses: fsdp_on_cpu.py MODEL FOLDER WEIGHTS."""

import json
import os
import sys
from pathlib import Path

import polars as pl
import torch
from accelerate.utils import DistributedType
from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from mbt_cli.core.recipe import Recipe
from mbt_cli.core.rows import EXAMPLES
from mbt_cli.core.training_job import TrainingJob, Weights
from mbt_cli.core.verifier import plugin_reference
from mbt_cli.training.batches import share_exactly
from mbt_cli.training.evaluation import Asked, EvaluatesHeldOut, Evaluations, held_out_rows
from mbt_cli.training.loop import arguments, prepare
from mbt_cli.training.models import load_model
from mbt_cli.training.sft_rows import SftRows
from mbt_cli.training.shards import RowSet, write_rows
from mbt_cli.training.tokenizer import ModelTokenizer
from mbt_cli.verifiers.text import TextVerifier


class Evaluated(EvaluatesHeldOut, SFTTrainer):
    pass


def main(model, folder, master_weights):
    trainer_settings = {
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "num_train_epochs": 1,
        "gradient_checkpointing": False,
        "optim": "adamw_torch",
    }
    recipe = Recipe(
        method="sft",
        tuning="full",
        dtype="bfloat16",
        master_weights=master_weights,
        batch_size=8,
        device_batch_size=2,
        max_length=64,
        trainer=trainer_settings,
        evaluation={"score": {"questions": 3, "max_tokens": 4, "batch_size": 1}},
    )
    weights = Weights(model=model)
    job = TrainingJob(
        address="sft",
        study="fsdp",
        weights=weights,
        template={},
        recipe=recipe,
        method={},
        seed=1,
        examples="",
        folder=folder,
        files=f"{folder}/files",
        validation=f"{folder}/validation.parquet",
        verifiers={"questions/benchmark=b/split=s": plugin_reference(TextVerifier())},
    )
    asked = {"source": "base/benchmark=b/split=s", "references": ["x"], "dropped": None}
    examples = [
        {**dict.fromkeys(EXAMPLES), **asked, "question_id": text, "completion": text}
        | {"messages": [{"role": "user", "content": text}]}
        for text in ("Oslo?", "the capital of Norway?", "who?")
    ]
    pl.DataFrame(examples, schema=EXAMPLES).write_parquet(job.validation)
    own = {"max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}
    own["eval_strategy"] = "no"  # evaluated once, below
    settings = arguments(job, SFTConfig, own)
    state = settings.distributed_state
    if os.environ.get("ACCELERATE_USE_FSDP"):
        # accelerate shards only on devices such as GPUs; PyTorch's FSDP runs on CPUs as well
        state._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    with state.main_process_first():
        if state.is_main_process:
            Path(job.files).mkdir(exist_ok=True)
            write_rows(job, SftRows, RowSet.held_out(job.validation), processes=1)
    # rows of 3 to 22 tokens; the last batch has 4 of them
    rows = [[5 + (7 * n + k) % 90 for k in range(3 + n)] for n in range(20)]
    tokenizer = AutoTokenizer.from_pretrained(model)
    adapted = ModelTokenizer(tokenizer, {})
    trainer = Evaluated(
        model=load_model(weights, recipe, to_train=True),
        args=settings,
        train_dataset=Dataset.from_list(
            [{"input_ids": row, "labels": [-100, *row[1:]]} for row in rows]
        ),
        eval_dataset=held_out_rows(job, multiple=2 * state.num_processes),
        processing_class=tokenizer,
    )
    share_exactly(trainer, recipe.batch_size)
    prepare(trainer, recipe)
    trainer.evaluations = Evaluations(Path(folder), recipe, 0, writes=state.is_main_process)
    trainer.asked = Asked(job, tokenizer, adapted, tokenizer.eos_token_id)
    trainer.train()
    evaluated = trainer.evaluate()
    trained = [w for w in trainer.model.parameters() if w.requires_grad]
    moments = [one["exp_avg"] for one in trainer.optimizer.state.values()]
    told = {
        "distributed": trainer.accelerator.distributed_type.value,
        "types": sorted({str(t.dtype) for t in (*trained, *moments)}),
        **evaluated,
        "questions": trainer.evaluations.lines[-1]["questions"],
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
    }
    if state.is_main_process:
        print(json.dumps(told))


if __name__ == "__main__":
    torch.manual_seed(1)
    main(*sys.argv[1:])
