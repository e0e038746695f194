"""Rollouts of one cell as question x sample, and means of values over a question's samples.

Questions are ordered by id, so the order of the rows does not matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.errors import StageError
from mbt_cli.verifiers.text import question_numbers

Values = npt.NDArray[np.float64]
"""One value per rollout, in the order of the rows; NaN for no value."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The question and sample of each row.

    Args:
        ids: The distinct question ids, sorted.
        question: Index of each row's question in `ids`, shape (rows,).
        sample: Number of each row's sample, shape (rows,).
        failed: Whether the reply never came, shape (rows,).
        rank: Rank of each row within its question by sample number, from 0.
    """

    ids: pl.Series
    question: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]
    failed: npt.NDArray[np.bool_]
    rank: npt.NDArray[np.int64]

    def counts(self) -> npt.NDArray[np.int64]:
        """Number of rows of each question, failed ones included, shape (questions,)."""
        return np.bincount(self.question, minlength=len(self.ids))

    def per_question(
        self, columns: Mapping[str, Values], *, counted: str = "value"
    ) -> pl.DataFrame:
        """Means over each question's samples: `question_id`, `n`, `failed` and the columns.

        `n` counts the samples with a value in the column `counted`, `failed` the others. The mean
        of no values is null.
        """
        size = len(self.ids)
        means: dict[str, pl.Series] = {}
        n = np.zeros(size, np.int64)
        for name, values in columns.items():
            missing = np.isnan(values)
            has = ~missing if missing.any() else slice(None)  # a slice copies nothing
            count = np.bincount(self.question[has], minlength=size)
            total = np.bincount(self.question[has], weights=values[has], minlength=size)
            mean = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
            means[name] = pl.Series(name, mean).fill_nan(None)
            if name == counted:
                n = count
        rows = np.bincount(self.question, minlength=size)
        return pl.DataFrame(
            {"question_id": self.ids, "n": n.astype(np.int64), "failed": rows - n, **means}
        )


def samples_of(rollouts: pl.DataFrame) -> Samples:
    """Index the rows of a cell by question and sample.

    Args:
        rollouts: `question_id`, `sample` and `failure`.

    Raises:
        StageError: A row has no key, or two rows share one.
    """
    if rollouts.select("question_id", "sample").null_count().sum_horizontal().item():
        refuse_repeats(rollouts, ("question_id", "sample"), "rollouts")
    ids, question = question_numbers(rollouts["question_id"])
    sample = rollouts["sample"].to_numpy()
    key = question * (int(sample.max(initial=0)) + 1) + sample
    order = np.argsort(key, kind="stable")
    if (np.diff(key[order]) == 0).any():
        refuse_repeats(rollouts, ("question_id", "sample"), "rollouts")
    counts = np.bincount(question, minlength=len(ids))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    failed = rollouts["failure"].is_not_null().to_numpy()
    return Samples(ids=ids, question=question, sample=sample, failed=failed, rank=rank)


def refuse_repeats(frame: pl.DataFrame, key: tuple[str, ...], what: str) -> None:
    """Check that every row has a key and no two rows share one.

    Raises:
        StageError: A key is missing or repeated; names the first.
    """
    keys = frame.select(key)
    if keys.null_count().sum_horizontal().item():
        raise StageError(
            f"{what} have a row without `{'` or `'.join(key)}`",
            hint="every row needs a key: joins are by key, never by order",
        )
    repeated = keys.is_duplicated()
    if repeated.any():
        first = keys.filter(repeated).sort(key).row(0, named=True)
        where = ", ".join(f"{name} `{value}`" for name, value in first.items())
        raise StageError(
            f"{what} have {int(repeated.sum())} rows that share a key; first: {where}",
            hint="one row per question and sample: remove the repeated rows from the source",
        )
