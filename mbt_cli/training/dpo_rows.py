"""Rows of preference optimization, before its ranks start: -m mbt_cli.training.dpo_rows JOB."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from mbt_cli.core.rows import TRAINING_PAIRS
from mbt_cli.core.training_job import TrainingJob
from mbt_cli.training.mask import ChatFormat, Example, UntrainableError
from mbt_cli.training.problems import exit_code_of
from mbt_cli.training.shards import RowSet, write_rows
from mbt_cli.training.tokenizer import ModelTokenizer


class DpoRows:
    """Tokens of a prompt and of its two completions, by the names that TRL has for them."""

    schema: ClassVar[pa.Schema] = pa.schema(
        {name: pa.list_(pa.int32()) for name in ("prompt_ids", "chosen_ids", "rejected_ids")}
    )
    texts: ClassVar[pl.Schema] = TRAINING_PAIRS

    def __init__(self, job: TrainingJob, tokenizer: ModelTokenizer) -> None:
        self._chat = ChatFormat(tokenizer)
        self._max_length = job.recipe.max_length

    def row(self, example: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Texts and tokens of a pair; both replies must be trainable."""
        told = {"rejected_sample": example["rejected_sample"]}
        if example["dropped"] is not None:
            return {**told, "dropped": example["dropped"]}, None
        try:
            chosen = self._made(example, "thinking", "completion")
            rejected = self._made(example, "rejected_thinking", "rejected")
        except UntrainableError as error:
            return {**told, "dropped": str(error)}, None
        start = len(chosen.input_ids) - chosen.trained
        texts = {
            **told,
            "prompt": chosen.prompt,
            "completion": chosen.completion,
            "rejected": rejected.completion,
            "tokens": len(chosen.input_ids) + len(rejected.input_ids),
            "trained_tokens": chosen.trained + rejected.trained,
        }
        return texts, {
            "prompt_ids": chosen.input_ids[:start],
            "chosen_ids": chosen.input_ids[start:],
            "rejected_ids": rejected.input_ids[len(rejected.input_ids) - rejected.trained :],
        }

    def _made(self, example: Mapping[str, Any], thinking: str, text: str) -> Example:
        return self._chat.example(
            example["messages"], example[thinking], example[text], max_length=self._max_length
        )


def write_dpo_rows(job: TrainingJob) -> None:
    """Write the rows that `mbt_cli.training.dpo` opens."""
    write_rows(job, DpoRows)
    if holds_out_pairs(job):
        assert job.validation is not None
        write_rows(job, DpoRows, RowSet.held_out(job.validation))


def holds_out_pairs(job: TrainingJob) -> bool:
    """Whether the held-out rows are pairs, which have a loss; others are questions alone."""
    return job.validation is not None and "rejected" in pq.read_schema(job.validation).names


if __name__ == "__main__":
    sys.exit(exit_code_of(write_dpo_rows, sys.argv[1]))
