"""Rows that others made, in mbt's columns: which of theirs becomes which of ours."""

from collections.abc import Mapping
from typing import Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.model import Settings

_KEYS = ("question_id", "sample", "trace_id")
_NUMBERS = ("sample", "trace_id", "rollout_sample", "solution_id")
_NOT_VALID = "not_valid_in_source"


class ColumnMap(Settings):
    """How a table of someone else's is read."""

    columns: dict[str, str]
    """Our column to theirs; a dot goes into a struct, as in `metadata.id`."""
    numbers_from: Literal[0, 1] = 0
    """What their samples and traces are counted from."""
    valid: str | None = None
    """Their column that says whether a row is good; where it is false, the row is a failed one."""


class SourcePreset(ColumnMap):
    """A published data set that stands in for a stage; `{axis}` is filled in from the cell."""

    makes: Literal["rollout", "solution", "mbt_s", "mbt_r", "plain"]
    """What its rows are."""
    repo: str
    """Data set repository on the hub, or a folder with the same files."""
    revision: str = "main"
    """Commit; a branch name is looked up and the commit recorded."""
    config: str = "default"
    """Configuration of the repository."""
    pattern: str = "{config}/{split}-*.parquet"
    """Files in the repository."""
    names: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Axis to our names of its values to theirs, where they differ."""
    licence: str = ""
    """Licence of the data."""

    def files(self, axes: Mapping[str, str]) -> str:
        """Path pattern of one cell's files.

        Raises:
            ValueError: A placeholder names no axis of the cell.

        Example:
            >>> made = SourcePreset(
            ...     columns={}, makes="mbt_r", repo="a/b", config="{model}",
            ...     names={"model": {"qwen3-0.6b": "Qwen3-0.6B"}},
            ... )
            >>> made.files({"model": "qwen3-0.6b", "split": "train"})
            'Qwen3-0.6B/train-*.parquet'
        """
        theirs = {axis: self.names.get(axis, {}).get(ours, ours) for axis, ours in axes.items()}
        try:
            return self.pattern.format(**theirs | {"config": self.config.format(**theirs)})
        except (KeyError, IndexError) as error:
            raise ValueError(f"the cell has no axis {error} for `{self.repo}`") from error


def mapped_rows(frame: pl.DataFrame, source: ColumnMap, schema: pl.Schema) -> pl.DataFrame:
    """Their rows as ours: columns that the map does not name are null, order stays.

    A missing `sample` is 0. A missing `trace_id` counts the rows of one question and sample.

    Args:
        frame: Their rows.
        source: What becomes of their columns.
        schema: `rows.ROLLOUTS` or `rows.TRACES`.

    Raises:
        ValueError: The map names a column that is not there or that we do not have, a value has
            another type, a question id is missing, or a key occurs twice; the message says which.
    """
    if unknown := [ours for ours in source.columns if ours not in schema]:
        raise ValueError(f"there is no column `{unknown[0]}`; there are {', '.join(schema)}")
    if "question_id" not in source.columns:
        raise ValueError("the map does not say which column is the `question_id`")
    taken = frame.select(
        _column(frame.schema, theirs).alias(ours) for ours, theirs in source.columns.items()
    )
    taken = _counted(_cast(taken, schema), source, schema)
    failure = _failures(frame, source)
    made = taken.with_columns(failure) if failure is not None else taken
    missing = [pl.lit(None).alias(name) for name in schema if name not in made.columns]
    made = _cast(made.with_columns(missing).select(list(schema)), schema)
    _check_keys(made)
    return made


def _column(schema: pl.Schema, path: str) -> pl.Expr:
    """A column of theirs by its dotted path."""
    name, *fields = path.split(".")
    if name not in schema:
        raise ValueError(f"the source has no column `{name}`; it has {', '.join(schema)}")
    expression: pl.Expr = pl.col(name)
    found: object = schema[name]
    for field in fields:
        inside = dict(found) if isinstance(found, pl.Struct) else {}
        if field not in inside:
            raise ValueError(f"the source's column `{name}` has no field `{field}`")
        expression, found = expression.struct.field(field), inside[field]
    return expression


def _counted(taken: pl.DataFrame, source: ColumnMap, schema: pl.Schema) -> pl.DataFrame:
    """Numbers from 0, with those that the source does not have."""
    given = [name for name in _NUMBERS if name in taken.columns]
    taken = taken.with_columns(pl.col(name) - source.numbers_from for name in given)
    if "sample" not in taken.columns:
        taken = taken.with_columns(pl.lit(0).alias("sample"))
    if "trace_id" in schema and "trace_id" not in taken.columns:
        number = pl.int_range(pl.len()).over("question_id", "sample")
        taken = taken.with_columns(number.alias("trace_id"))
    return taken


def _failures(frame: pl.DataFrame, source: ColumnMap) -> pl.Series | None:
    if source.valid is None:
        return None
    valid = frame.select(_column(frame.schema, source.valid).cast(pl.Boolean)).to_series()
    reasons = pl.when(valid.fill_null(False)).then(None).otherwise(pl.lit(_NOT_VALID))
    return pl.select(reasons.cast(pl.String).alias("failure")).to_series()


def _cast(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    for name in frame.columns:
        wanted = schema[name]
        try:
            frame = frame.with_columns(pl.col(name).cast(wanted))
        except pl.exceptions.PolarsError as error:
            raise ValueError(
                f"the source's column for `{name}` holds {frame.schema[name]}, not {wanted}"
            ) from error
    return frame


def _check_keys(frame: pl.DataFrame) -> None:
    if frame["question_id"].null_count():
        raise ValueError(f"{frame['question_id'].null_count()} rows have no question id")
    keys = [name for name in _KEYS if name in frame.columns]
    twice = frame.filter(pl.struct(keys).is_duplicated())
    if not twice.is_empty():
        first = ", ".join(f"{name} {twice[name][0]}" for name in keys)
        raise ValueError(f"{twice.height} rows share their key with another, such as {first}")
