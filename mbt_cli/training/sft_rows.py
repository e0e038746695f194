"""Rows of supervised fine-tuning, before its ranks start: -m mbt_cli.training.sft_rows JOB."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa

from mbt_cli.core.rows import TRAINING_SET
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training.mask import ChatFormat, UntrainableError
from mbt_cli.training.problems import exit_code_of
from mbt_cli.training.shards import Packing, RowSet, write_rows
from mbt_cli.training.tokenizer import ModelTokenizer


class SftRows:
    """Tokens and labels of prompt and completion."""

    schema: ClassVar[pa.Schema] = pa.schema(
        {name: pa.list_(pa.int32()) for name in ("input_ids", "labels")}
    )

    texts: ClassVar[pl.Schema] = TRAINING_SET

    def __init__(self, job: TrainingJob, tokenizer: ModelTokenizer) -> None:
        self._chat = ChatFormat(tokenizer)
        self._max_length = job.recipe.max_length

    def row(self, example: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Texts and tokens of an example."""
        if example["dropped"] is not None:
            return {"dropped": example["dropped"]}, None
        try:
            made = self._chat.example(
                example["messages"],
                example["thinking"],
                example["completion"],
                max_length=self._max_length,
            )
        except UntrainableError as error:
            return {"dropped": str(error)}, None
        texts = {
            "prompt": made.prompt,
            "completion": made.completion,
            "tokens": len(made.input_ids),
            "trained_tokens": made.trained,
        }
        return texts, {"input_ids": made.input_ids, "labels": made.labels}


def write_sft_rows(job: TrainingJob) -> None:
    """Write the rows that `mbt_cli.training.sft` opens."""
    recipe, trainer = job.recipe, job.recipe.trainer
    packing = Packing(
        recipe.max_length, trainer.get("packing_strategy", "bfd"), trainer.get("dataset_num_proc")
    )
    write_rows(
        job,
        SftRows,
        packing=packing if trainer.get("packing") else None,
        shuffled=bool(trainer.get("shuffle_dataset")),
    )
    if job.validation is not None:
        write_rows(job, SftRows, RowSet.held_out(job.validation))


if __name__ == "__main__":
    sys.exit(exit_code_of(write_sft_rows, sys.argv[1]))
