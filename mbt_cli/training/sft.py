"""Supervised fine-tuning by TRL's SFTTrainer: python -m mbt_cli.training.sft JOB."""

import sys
from typing import Any

import polars as pl
import torch
from datasets import Dataset
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from mbt_cli.core.chat import Json
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training import models, processors
from mbt_cli.training.loop import arguments, finish, process_state, train
from mbt_cli.training.mask import turn_of
from mbt_cli.training.problems import exit_code_of
from mbt_cli.training.training_set import token_counts, training_set


def fine_tune(job: TrainingJob) -> None:
    """Train on the job's examples and save what came of it."""
    recipe = job.recipe
    if is_on_processors := not torch.cuda.is_available():
        processors.keep_freed_memory()
    tokenizer = models.load_tokenizer(job.weights)
    adapted = models.ModelTokenizer(tokenizer, job.template)
    with process_state().main_process_first():
        examples = training_set(job, adapted)
    is_packed = bool(recipe.trainer.get("packing"))
    own: dict[str, Json] = {
        # rows are rendered, masked and short enough already
        "max_length": recipe.max_length if is_packed else None,
        "dataset_kwargs": None if is_packed else {"skip_prepare_dataset": True},
    }
    if is_on_processors:
        own["pad_to_multiple_of"] = recipe.trainer.get("pad_to_multiple_of", processors.PADDED_TO)
    settings = arguments(job, SFTConfig, own)
    set_seed(job.seed)
    trainer = SFTTrainer(
        model=models.load_model(job.weights, recipe, quantized=recipe.tuning == "qlora"),
        args=settings,
        train_dataset=_dataset(examples),
        processing_class=tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    if is_on_processors:
        processors.score_trained_positions(trainer.model)
    trained = train(trainer, job)
    turn = turn_of(adapted, pl.read_parquet(job.examples, n_rows=1)["messages"][0].to_list())
    finish(trainer, job, trained, end_token=turn.end_token, facts=dict(token_counts(job)))


def _dataset(examples: pl.DataFrame) -> Any:
    return Dataset.from_dict(examples.to_dict(as_series=False))


if __name__ == "__main__":
    sys.exit(exit_code_of(fine_tune, sys.argv[1]))
