"""Reading a file of published numbers, see `core/references.py`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from mbt_cli.core.tables import Column, TableData
from mbt_cli.errors import UsageError

METRIC, VALUE = "metric", "value"
_PUBLISHED, _GAP = "_published", "_gap"


def with_reference(table: TableData, reference: pl.DataFrame, axes: Sequence[str]) -> TableData:
    """The table with two more columns behind each metric that the reference has.

    Args:
        table: Its rows hold the axes as text columns.
        reference: `metric`, `value` (Float64) and axes as text columns.
        axes: Names of the study's axes.

    Raises:
        ValueError: Two lines of the reference speak of the same number.
    """
    columns: list[Column] = []
    rows = table.rows
    for column in table.columns:
        columns.append(column)
        published = _published(rows, reference.filter(pl.col(METRIC) == column.key), axes)
        if column.kind == "label" or not any(value is not None for value in published):
            continue
        scale = 100.0 if column.unit == "percent" else 1.0
        values = pl.Series(f"{column.key}{_PUBLISHED}", published, dtype=pl.Float64) / scale
        gap = (rows[column.key] - values).alias(f"{column.key}{_GAP}")
        rows = rows.with_columns(values, gap)
        beside = ((values.name, f"{column.title}, published"), (gap.name, "difference"))
        columns += [replace(column, key=key, title=title, best="none") for key, title in beside]
    return replace(table, columns=columns, rows=rows)


def _published(
    rows: pl.DataFrame, reference: pl.DataFrame, axes: Sequence[str]
) -> list[float | None]:
    named = [axis for axis in axes if axis in reference.columns and axis in rows.columns]
    lines = reference.select(*named, VALUE).rows(named=True)
    return [_matching(row, lines, named) for row in rows.iter_rows(named=True)]


def _matching(
    row: dict[str, str | None], lines: Sequence[dict[str, str | float | None]], axes: Sequence[str]
) -> float | None:
    values = {
        line[VALUE] for line in lines if all(line[axis] in (None, "", row[axis]) for axis in axes)
    }
    if len(values) > 1:
        where = ", ".join(f"{axis} {row[axis]}" for axis in axes)
        raise ValueError(f"the reference has {len(values)} values for {where}")
    value = next(iter(values), None)
    return float(value) if value is not None else None


_HINT = "the first line names the columns: axes such as benchmark and model, then metric, value"


def read_reference(path: Path) -> pl.DataFrame:
    """A reference file: axes and `metric` as text, `value` as a number.

    Raises:
        UsageError: The file is not there, is no CSV, or lacks a column; or a value is no number.
    """
    try:
        frame = pl.read_csv(path, infer_schema=False, comment_prefix="#")
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UsageError(f"cannot read the reference `{path}`: {reason}", hint=_HINT) from error
    missing = [name for name in (METRIC, VALUE) if name not in frame.columns]
    if missing:
        raise UsageError(f"the reference `{path}` has no column `{missing[0]}`", hint=_HINT)
    numbers = frame[VALUE].str.strip_chars().cast(pl.Float64, strict=False)
    for line, (text, number) in enumerate(zip(frame[VALUE], numbers, strict=True), start=1):
        if number is None:
            raise UsageError(f"`{path}`, row {line}: `{text}` is no number", hint=_HINT)
    return frame.with_columns(numbers.alias(VALUE))
