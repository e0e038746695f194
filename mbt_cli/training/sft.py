"""Supervised fine-tuning with TRL's SFTTrainer: python -m mbt_cli.training.sft JOB."""

import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import torch
from datasets import Dataset
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from mbt_cli.core import rows
from mbt_cli.core.chat import Json
from mbt_cli.core.training_job import TRAINING_SET, TrainingJob
from mbt_cli.training import models, processors
from mbt_cli.training.loop import arguments, finish, process_state, train
from mbt_cli.training.mask import UntrainableError, example_of, turn_of
from mbt_cli.training.problems import TrainingError, exit_code_of

_TOKENS = "tokens.parquet"
_SAMPLE = "sample.txt"


def fine_tune(job: TrainingJob) -> None:
    """Train on the job's examples and save the result."""
    recipe = job.recipe
    if on_processor := not torch.cuda.is_available():
        processors.keep_freed_memory()
    tokenizer = models.load_tokenizer(job.weights)
    adapted = models.ModelTokenizer(tokenizer, job.template)
    with process_state().main_process_first():
        examples = _training_set(job, adapted)
    is_packed = bool(recipe.trainer.get("packing"))
    own: dict[str, Json] = {
        # the rows are already rendered, masked and short enough
        "max_length": recipe.max_length if is_packed else None,
        "dataset_kwargs": None if is_packed else {"skip_prepare_dataset": True},
    }
    if on_processor:
        own["pad_to_multiple_of"] = recipe.trainer.get("pad_to_multiple_of", processors.PADDED_TO)
    settings = arguments(job, SFTConfig, own)
    set_seed(job.seed)
    trainer = SFTTrainer(
        model=models.load_model(job.weights, recipe, quantized=recipe.tuning == "qlora"),
        args=settings,
        train_dataset=Dataset.from_dict(examples.to_dict(as_series=False)),
        processing_class=tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    if on_processor:
        processors.score_trained_positions(trainer.model)
    trained = train(trainer, job)
    turn = turn_of(adapted, pl.read_parquet(job.examples, n_rows=1)["messages"][0].to_list())
    finish(trainer, job, trained, end_token=turn.end_token, facts=_row_counts(job))


def _training_set(job: TrainingJob, tokenizer: models.ModelTokenizer) -> pl.DataFrame:
    """`input_ids` and `labels` of every row that is trained on, in the order of the examples.

    The rows are made once: a resumed run reads those of the first one, so that a chat template
    that contains the date cannot change them. Their texts go into the artifact.

    Raises:
        ChatTemplateError: The template cannot be trained with.
        TrainingError: No row is left.
    """
    folder, files = Path(job.folder), Path(job.files)
    tokens = folder / _TOKENS
    if not tokens.is_file():
        _write_training_set(job, tokenizer, folder)
    for name in (TRAINING_SET, _SAMPLE):
        shutil.copyfile(folder / name, files / name)
    found = pl.read_parquet(tokens)
    if found.is_empty():
        dropped = pl.read_parquet(folder / TRAINING_SET)["dropped"]
        counts = dropped.str.split(":").list.first().value_counts(sort=True)
        reasons = "; ".join(f"{n} x {reason}" for reason, n in counts.rows())
        lengths = dropped.str.extract(r"^over_long: (\d+)").cast(pl.Int64).drop_nulls().to_list()
        shortest = f"; the shortest has {min(lengths)} tokens" if lengths else ""
        raise TrainingError(
            f"no row is left to train on ({reasons}{shortest})",
            f"raise `recipe.max_length`, or check {folder / TRAINING_SET}",
        )
    return found


def _write_training_set(job: TrainingJob, tokenizer: models.ModelTokenizer, folder: Path) -> None:
    texts: list[dict[str, Any]] = []
    tokens: list[dict[str, list[int]]] = []
    for row in pl.read_parquet(job.examples).iter_rows(named=True):
        names = ("source", "question_id", "sample", "trace_id", "dropped")
        text = {name: row[name] for name in names}
        if row["dropped"] is None:
            try:
                example = example_of(
                    tokenizer, row["messages"], row["completion"], max_length=job.recipe.max_length
                )
            except UntrainableError as error:
                text["dropped"] = str(error)
            else:
                text |= {
                    "prompt": example.prompt,
                    "completion": example.completion,
                    "tokens": len(example.input_ids),
                    "trained_tokens": example.trained,
                }
                tokens.append({"input_ids": example.input_ids, "labels": example.labels})
        texts.append({**dict.fromkeys(rows.TRAINING_SET), **text})
    frame = pl.DataFrame(texts, schema=rows.TRAINING_SET)
    frame.write_parquet(folder / TRAINING_SET)
    first = frame.filter(pl.col("dropped").is_null()).head(1).rows(named=True)
    sample = "".join(
        f"{r['prompt']}\n>>> trained from here\n{r['completion']}\n<<< to here\n" for r in first
    )
    (folder / _SAMPLE).write_text(sample, encoding="utf-8")
    ids = pl.List(pl.Int64())
    partial = folder / f"{_TOKENS}.partial"
    pl.DataFrame(tokens, schema={"input_ids": ids, "labels": ids}).write_parquet(partial)
    partial.replace(folder / _TOKENS)


def _row_counts(job: TrainingJob) -> dict[str, Json]:
    """Trained and dropped rows, and their tokens, for the lineage."""
    texts = pl.read_parquet(Path(job.folder) / TRAINING_SET)
    trained = texts.filter(pl.col("dropped").is_null())
    reasons = texts["dropped"].drop_nulls().str.split(":").list.first().value_counts()
    return {
        "rows": trained.height,
        "row_tokens": int(trained["tokens"].sum()),
        "trained_tokens": int(trained["trained_tokens"].sum()),
        **{f"dropped_{reason.replace(' ', '_')}": n for reason, n in reasons.rows()},
    }


if __name__ == "__main__":
    sys.exit(exit_code_of(fine_tune, sys.argv[1]))
