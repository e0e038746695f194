"""Columns of tables and records from elsewhere, and the names that mbt has for them."""

from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import Settings

_KEYS = ("question_id", "sample", "trace_id")
_NUMBERS = ("sample", "trace_id", "rollout_sample", "solution_id")
_NOT_VALID = "not_valid_in_source"


class ColumnMap(Settings):
    """How an imported table is read."""

    columns: dict[str, str]
    """Column of mbt to column of the table; a dot selects a struct field, as in `metadata.id`."""
    numbers_from: Literal[0, 1] = 0
    """First number of samples and traces in the table."""
    valid: str | tuple[str, ...] | None = None
    """Boolean column of the table, or several; rows where one of them is false or 0 count as
    failed."""


class SourcePreset(ColumnMap):
    """A published data set that replaces a stage; `{axis}` is filled in from the cell."""

    makes: Literal["rollout", "solution", "mbt_s", "mbt_r", "plain"]
    """Kind of the rows."""
    repo: str
    """Data set repository on the hub, or a folder with the same files."""
    revision: str = "main"
    """Commit; for a branch, the current commit is used and recorded."""
    config: str = "default"
    """Configuration of the repository."""
    pattern: str = "{config}/{split}-*.parquet"
    """Path pattern of the files in the repository."""
    names: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Axis to a table of its values to their names in the repository, if they differ."""
    licence: str = ""
    """Licence of the data."""

    def files(self, axes: Mapping[str, str]) -> str:
        """Path pattern of the files of one cell.

        Raises:
            ValueError: A placeholder is not an axis of the cell.

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
    """Imported rows in the columns of mbt, in the same order; unmapped columns are null.

    A missing `sample` is 0. A missing `trace_id` numbers the rows of a question and sample.

    Args:
        frame: The imported rows.
        source: The column mapping.
        schema: `rows.ROLLOUTS` or `rows.TRACES`.

    Raises:
        ValueError: The mapping names an unknown column, a value has the wrong type, a question id
            is missing, or a key is not unique.
    """
    if unknown := [ours for ours in source.columns if ours not in schema]:
        raise ValueError(f"no column `{unknown[0]}`; the columns are {', '.join(schema)}")
    if "question_id" not in source.columns:
        raise ValueError("`columns` does not map `question_id`")
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
    """A column of the table by its dotted path."""
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
    """Samples and traces numbered from 0; missing numbers are filled in."""
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
    names = (source.valid,) if isinstance(source.valid, str) else source.valid
    given = frame.select(_column(frame.schema, name).alias(name) for name in names)
    for name, found in given.schema.items():
        if not (found == pl.Boolean or found.is_numeric()):
            raise ValueError(f"the source's column `{name}` is {found}, not true or false")
    valid = (pl.col(name).cast(pl.Boolean).fill_null(False) for name in given.columns)
    reason = pl.when(pl.all_horizontal(*valid)).then(None).otherwise(pl.lit(_NOT_VALID))
    return given.select(reason.cast(pl.String).alias("failure")).to_series()


def _cast(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    for name in frame.columns:
        wanted = schema[name]
        try:
            frame = frame.with_columns(pl.col(name).cast(wanted))
        except pl.exceptions.PolarsError as error:
            raise ValueError(
                f"the source's column for `{name}` is {frame.schema[name]}, not {wanted}"
            ) from error
    return frame


def _check_keys(frame: pl.DataFrame) -> None:
    if frame["question_id"].null_count():
        raise ValueError(f"{frame['question_id'].null_count()} rows have no question id")
    keys = [name for name in _KEYS if name in frame.columns]
    twice = frame.filter(pl.struct(keys).is_duplicated())
    if not twice.is_empty():
        first = ", ".join(f"{name} {twice[name][0]}" for name in keys)
        raise ValueError(f"{twice.height} rows do not have a unique key, such as {first}")


def mapped_record(
    record: Mapping[str, Json], columns: Mapping[str, str | Sequence[str]]
) -> Mapping[str, Json]:
    """A record of a data set with the names of a benchmark's layout; other fields stay.

    Args:
        record: The record.
        columns: Field of the layout to column, or to several whose values make a list.

    Raises:
        ValueError: The record has no such column.

    Example:
        >>> mapped_record({"a": {"text": "Ann"}, "n": 1}, {"answer": "a.text"})
        {'a': {'text': 'Ann'}, 'n': 1, 'answer': 'Ann'}
    """
    if not columns:
        return record
    made: dict[str, Json] = {}
    taken: set[str] = set()
    for ours, theirs in columns.items():
        names = [theirs] if isinstance(theirs, str) else theirs
        values = [field_of(record, name) for name in names]
        made[ours] = values[0] if isinstance(theirs, str) else values
        taken |= set(names)
    rest = {name: value for name, value in record.items() if name not in taken}
    return {**rest, **made}


def field_of(record: Mapping[str, Json], path: str) -> Json:
    """A column of a record; a dot selects a field inside it, unless a column has the whole name.

    Raises:
        ValueError: The record has no such column.
    """
    if path in record:
        return record[path]
    found: Json = record
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            raise ValueError(f"the data has no column `{path}`; it has {', '.join(record)}")
        found = found[name]
    return found
