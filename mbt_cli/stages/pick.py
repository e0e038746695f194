"""The samples that a training learns from, chosen by their values in score cells."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Self

import polars as pl
from pydantic import Field, model_validator

from mbt_cli.core import rows
from mbt_cli.core.names import nearest
from mbt_cli.core.plugin import Settings
from mbt_cli.errors import StageError
from mbt_cli.report.metrics import display_of
from mbt_cli.stages.base import LoadedInput, StageInput
from mbt_cli.store.cells import FILES
from mbt_cli.store.reading import read_parquet_file

SCORES = "pick.scores"
"""The input with the score cells."""
KEY = ("source", "question_id", "sample")

_SAMPLES = f"{FILES}/{rows.SAMPLES_FILE}"
_RANGE = 2
_DIGITS = 6
"""Decimals to which a share of the samples is exact, so that 7 % of 100 are 7."""


class Pick(Settings):
    """`{ scores = "STAGE", metric = "brier", best = 0.25 }`: the samples that are trained on."""

    scores: StageInput
    """Score stage of the rollouts in `data`."""
    metric: str
    """Its metric, which has a value for each sample."""
    best: float | None = Field(default=None, gt=0, le=1)
    """Share of the samples, rounded up: those with the best values. 1 keeps all."""
    worst: float | None = Field(default=None, gt=0, le=1)
    """The same of those with the worst values."""
    between: Annotated[list[float], Field(min_length=_RANGE, max_length=_RANGE)] | None = None
    """The lowest and the highest value, in the metric's own numbers: 0.5, not 50 %."""
    per_question: int | None = Field(default=None, ge=1)
    """Most samples of one question that are left of these."""
    at_most: int | None = Field(default=None, ge=1)
    """Most samples of all that are left of these."""

    @model_validator(mode="after")
    def _is_one_choice(self) -> Self:
        written = [name for name in ("best", "worst", "between") if getattr(self, name) is not None]
        if len(written) != 1:
            raise ValueError(
                "needs exactly one of `best = 0.25`, `worst = 0.25`, `between = [0, 1]`"
            )
        if self.between is not None and self.between[0] > self.between[1]:
            raise ValueError("`between` needs the lower number first")
        return self

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the metric: key and message."""
        if "@" in self.metric:
            yield "metric", f"`{self.metric}` is over k samples, and a sample has no value of it"
        elif self.between is None and display_of(self.metric).best == "none":
            end = "best" if self.best is not None else "worst"
            yield end, f"`{self.metric}` has no better end: use `between = [LOW, HIGH]`"

    def __str__(self) -> str:
        end, value = next(
            (name, value)
            for name in ("best", "worst", "between")
            if (value := getattr(self, name)) is not None
        )
        shown = " to ".join(f"{one:g}" for one in (value if end == "between" else [value]))
        return f"{end} {shown} by `{self.metric}`"


def picked(samples: pl.LazyFrame, pick: Pick) -> pl.LazyFrame:
    """The samples that are picked, the first one first.

    Of equal values, lower sample numbers go first, then lower question ids.

    Args:
        samples: `rows.SAMPLES` with `address`, the score cell of each.
        pick: The choice.

    Example:
        >>> samples = pl.LazyFrame({"address": "s", "question_id": ["a", "a", "b"],
        ...     "sample": [0, 1, 0], "metric": "brier", "value": [0.3, 0.1, None]})
        >>> one = Pick(scores="s", metric="brier", best=0.5)
        >>> picked(samples, one).collect()["sample"].to_list()
        [1]
    """
    own = samples.filter(pl.col("metric") == pick.metric, pl.col("value").is_not_null())
    ties = ("sample", "question_id", "address")
    if pick.between is not None:
        low, high = pick.between
        own = own.filter(pl.col("value").is_between(low, high)).sort(ties)
    else:
        share = pick.worst if pick.best is None else pick.best
        descending = (display_of(pick.metric).best == "high") == (pick.best is not None)
        own = own.sort("value", *ties, descending=[descending, *(False for _ in ties)])
        own = own.filter(pl.int_range(pl.len()) < (pl.len() * share).round(_DIGITS))
    if pick.per_question is not None:
        number = pl.int_range(pl.len()).over("address", "question_id")
        own = own.filter(number < pick.per_question)
    return own if pick.at_most is None else own.head(pick.at_most)


def picked_rows(
    cells: Sequence[LoadedInput], data: Sequence[LoadedInput], pick: Pick
) -> tuple[pl.DataFrame, int]:
    """`source` (the cell in `data`), `question_id` and `sample` of what is picked; and of how many.

    Args:
        cells: The score cells, one for each cell of the data.
        data: The rollouts that they score.
        pick: The choice.

    Raises:
        StageError: The samples of a cell have no value of the metric, or none is picked.
        ArtifactError: A file cannot be read.
    """
    scored = {
        cell.address: next((d.address for d in data if d.address in cell.lineage.inputs), "")
        for cell in cells
        if cell.lineage is not None
    }
    frames = []
    for cell in cells:
        if cell.lineage is None or _SAMPLES not in cell.lineage.files:
            raise StageError(
                f"`{cell.address}` has no values of samples: an earlier version made it",
                hint=f"run it again: `mbt run MANIFEST --only '{cell.address}' --replace`",
            )
        frame = read_parquet_file(cell.folder, _SAMPLES, cell.lineage)
        frame = frame.with_columns(pl.col("metric").cast(pl.String), address=pl.lit(cell.address))
        own = frame.filter(pl.col("metric") == pick.metric)
        if own.limit(1).collect().is_empty():
            known = frame.select(pl.col("metric").unique().sort()).collect()["metric"].to_list()
            raise StageError(
                f"the samples of `{cell.address}` have no values of `{pick.metric}`",
                hint=f"`pick.metric`: {nearest(pick.metric, known)}",
            )
        frames.append(own)
    samples = pl.concat(frames)
    total = samples.filter(pl.col("value").is_not_null()).select(pl.len()).collect().item()
    source = pl.col("address").replace_strict(scored, return_dtype=pl.String).alias("source")
    found = picked(samples, pick).select(source, "question_id", "sample").collect()
    if found.is_empty():
        raise StageError(
            f"none of {total:,} samples is picked: {pick}",
            hint="widen `pick`, or read other scores",
        )
    return found, total


def is_picked(index: pl.DataFrame, found: pl.DataFrame) -> pl.Series:
    """Whether each row of an index is of a sample that is picked."""
    marked = found.with_columns(pl.lit(value=True).alias("picked"))
    joined = index.select(KEY).join(marked, on=KEY, how="left", maintain_order="left")
    return joined["picked"].fill_null(value=False)
