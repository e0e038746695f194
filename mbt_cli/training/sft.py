"""Supervised fine-tuning by TRL's SFTTrainer: python -m mbt_cli.training.sft JOB."""

import sys
from typing import Any

import polars as pl
from datasets import Dataset
from transformers import set_seed
from trl import SFTTrainer

from mbt_cli.core.chat_mask import turn_of
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training import models
from mbt_cli.training.problems import exit_code_of
from mbt_cli.training.running import arguments, finish, process_state, train
from mbt_cli.training.training_set import token_counts, training_set


def fine_tune(job: TrainingJob) -> None:
    """Train on the job's examples and save what came of it."""
    recipe = job.recipe
    tokenizer = models.load_tokenizer(job.weights)
    adapted = models.ModelTokenizer(tokenizer, job.template)
    with process_state().main_process_first():
        examples = training_set(job, adapted)
    is_packed = bool(recipe.trainer.get("packing"))
    settings = arguments(
        job,
        {
            # rows are rendered, masked and short enough already
            "max_length": recipe.max_length if is_packed else None,
            "dataset_kwargs": None if is_packed else {"skip_prepare_dataset": True},
        },
    )
    set_seed(job.seed)
    trainer = SFTTrainer(
        model=models.load_model(job.weights, recipe, quantized=recipe.tuning == "qlora"),
        args=settings,
        train_dataset=_dataset(examples),
        processing_class=tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    follower = train(trainer, job)
    turn = turn_of(adapted, pl.read_parquet(job.examples, n_rows=1)["messages"][0].to_list())
    finish(trainer, job, follower, end_token=turn.end_token, facts=dict(token_counts(job)))


def _dataset(examples: pl.DataFrame) -> Any:
    return Dataset.from_dict(examples.to_dict(as_series=False))


if __name__ == "__main__":
    sys.exit(exit_code_of(fine_tune, sys.argv[1]))
