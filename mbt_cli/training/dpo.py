"""Preference optimization with TRL's DPOTrainer: python -m mbt_cli.training.dpo JOB."""

import sys
from typing import Any

import polars as pl
import torch
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

from mbt_cli.core.chat import Json
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.training_job import VALIDATION_TOKENS, TrainingJob, Weights
from mbt_cli.training import models, processors
from mbt_cli.training.dpo_rows import holds_out_pairs
from mbt_cli.training.evaluation import Asked, EvaluatesHeldOut
from mbt_cli.training.loop import arguments, finish, is_fsdp, row_counts, train
from mbt_cli.training.mask import ChatFormat
from mbt_cli.training.problems import exit_code_of
from mbt_cli.training.row_files import open_rows
from mbt_cli.training.tokenizer import ModelTokenizer, load_tokenizer


def prefer(job: TrainingJob) -> None:
    """Train on the job's pairs and save the result."""
    recipe = job.recipe
    own: dict[str, Json] = {"max_length": None}  # the rows are already short enough
    if not torch.cuda.is_available():
        processors.keep_freed_memory()
        own["pad_to_multiple_of"] = recipe.trainer.get("pad_to_multiple_of", processors.PADDED_TO)
    tokenizer = load_tokenizer(job.weights)
    adapted = ModelTokenizer(tokenizer, job.template)
    settings = arguments(job, DPOConfig, own)
    set_seed(job.seed)
    rows, has_loss = open_rows(job), holds_out_pairs(job)
    held_out = open_rows(job, VALIDATION_TOKENS) if has_loss else rows.select([0])
    trainer = PairTrainer(
        model=models.load_model(job.weights, recipe, to_train=True),
        ref_model=reference_model(job.weights, recipe),
        args=settings,
        train_dataset=rows,
        # held-out questions may be answered by `asked` alone, but the trainer wants a set
        eval_dataset=held_out if job.validation else None,
        processing_class=tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    trainer.has_loss = has_loss
    asked = pl.read_parquet(job.examples, n_rows=1)["messages"][0].to_list()
    end_token = ChatFormat(adapted).turn(asked).end_tokens[-1]
    if recipe.evaluation.score is not None:
        trainer.asked = Asked(job, tokenizer, adapted, end_token)
    trained = train(trainer, job, end_token=end_token)
    finish(trainer, job, trained, end_token=end_token, facts=row_counts(job))


def reference_model(weights: Weights, recipe: Recipe) -> Any:
    """The model that the training starts from, never trained; None where TRL needs no copy.

    An adapter is switched off instead. With `precompute_ref_log_probs` the model itself is asked
    before its first step, which TRL cannot do under FSDP.
    """
    is_asked_before = recipe.trainer.get("precompute_ref_log_probs") and not is_fsdp(recipe)
    if recipe.tuning != "full" or is_asked_before:
        return None
    # in the policy's number type and with its attention, so that the first loss is exact
    return models.load_model(weights, recipe, to_train=True).requires_grad_(requires_grad=False)


class PairTrainer(EvaluatesHeldOut, DPOTrainer):  # type: ignore[misc]
    """Takes pairs as tokens, and evaluates on held-out questions."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def held_out_count(self, inputs: Any) -> Any:
        # a batch has the chosen replies, then the rejected ones
        mask = inputs["completion_mask"]
        return torch.tensor(len(mask) // 2, device=mask.device)


if __name__ == "__main__":
    sys.exit(exit_code_of(prefer, sys.argv[1]))
