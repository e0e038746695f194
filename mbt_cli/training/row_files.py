"""Rows that were tokenized before the ranks started: mapped into memory, never read as a whole."""

import os
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets

from mbt_cli.core.training_job import ORDER, TOKENS, WHOLE, TrainingJob


def open_rows(job: TrainingJob, tokens: str = TOKENS) -> Any:
    """The rows as a `datasets.Dataset`; ranks of one machine share the memory of its files.

    Args:
        job: The training.
        tokens: Their folder: `TOKENS` or `VALIDATION_TOKENS`.
    """
    folder = Path(job.folder) / tokens
    names = orjson.loads((folder / WHOLE).read_bytes())["files"]
    return concatenate_datasets([Dataset.from_file(str(folder / name)) for name in names])


def ordered(rows: Any, job: TrainingJob) -> Any:
    """The rows in the order of the job, which may repeat some; unchanged if it has none.

    Rows that the preparation has dropped are passed over. The order that is left goes into the
    artifact.

    Args:
        rows: From `open_rows`: questions.
        job: The training.
    """
    if job.order is None:
        return rows
    keys = zip(rows["source"], rows["question_id"], strict=True)
    places = {key: number for number, key in enumerate(keys)}
    wanted = pl.read_parquet(job.order)
    numbers = pl.Series("place", [places.get(key) for key in wanted.iter_rows()], pl.Int64)
    found = wanted.with_columns(numbers).filter(pl.col("place").is_not_null())
    if os.environ.get("RANK", "0") == "0":
        found.drop("place").write_parquet(Path(job.files) / ORDER)
    return rows.select(found["place"].to_list())


class RowLengths:
    """Stands in for a set of rows where a sampler needs only their number and lengths.

    Samplers of transformers take the length of `row["input_ids"]` of every row; here that is a
    `range`. Lengths come from the offsets of the lists, so no token is read.

    Args:
        rows: From `open_rows`.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._lengths: list[int] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, range]:
        if self._lengths is None:
            self._lengths = pc.list_value_length(self._rows.data.column("input_ids")).to_pylist()
        return {"input_ids": range(self._lengths[number])}
