"""Supervised fine-tuning with TRL's SFTTrainer: python -m mbt_cli.training.sft JOB."""

import sys
from typing import Any

import polars as pl
import torch
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from mbt_cli.core.chat import Json
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training import models, processors
from mbt_cli.training.batches import share_exactly
from mbt_cli.training.evaluation import Asked, EvaluatesHeldOut, held_out_rows
from mbt_cli.training.loop import arguments, finish, row_counts, train
from mbt_cli.training.mask import ChatFormat
from mbt_cli.training.problems import exit_code_of
from mbt_cli.training.row_files import RowLengths, open_rows
from mbt_cli.training.tokenizer import ModelTokenizer, load_tokenizer


def fine_tune(job: TrainingJob) -> None:
    """Train on the job's examples and save the result."""
    recipe = job.recipe
    if on_processor := not torch.cuda.is_available():
        processors.keep_freed_memory()
    tokenizer = load_tokenizer(job.weights)
    adapted = ModelTokenizer(tokenizer, job.template)
    is_packed = bool(recipe.trainer.get("packing"))
    own: dict[str, Json] = {
        # the rows are already rendered, masked, short enough and packed
        "max_length": recipe.max_length if is_packed else None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    if on_processor:
        own["pad_to_multiple_of"] = recipe.trainer.get("pad_to_multiple_of", processors.PADDED_TO)
    settings = arguments(job, SFTConfig, own)
    set_seed(job.seed)
    validation = held_out_rows(job, multiple=settings.eval_batch_size * settings.world_size)
    trainer = _Trainer(
        model=models.load_model(job.weights, recipe, to_train=True),
        args=settings,
        train_dataset=open_rows(job),
        eval_dataset=validation,
        processing_class=tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    if on_processor:
        processors.score_trained_positions(trainer.model)
    share_exactly(trainer, recipe.batch_size)
    asked = pl.read_parquet(job.examples, n_rows=1)["messages"][0].to_list()
    end_token = ChatFormat(adapted).turn(asked).end_tokens[-1]
    if recipe.evaluation.score is not None:
        trainer.asked = Asked(job, tokenizer, adapted, end_token)
    trained = train(trainer, job, end_token=end_token)
    finish(trainer, job, trained, end_token=end_token, facts=row_counts(job))


class _Trainer(EvaluatesHeldOut, SFTTrainer):  # type: ignore[misc]
    """Evaluates on held-out questions, and samples rows by their lengths without reading them."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        found = self.train_dataset if train_dataset is None else train_dataset
        return super()._get_train_sampler(RowLengths(found))

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return super()._get_eval_sampler(RowLengths(eval_dataset))


if __name__ == "__main__":
    sys.exit(exit_code_of(fine_tune, sys.argv[1]))
