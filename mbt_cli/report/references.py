"""Published numbers in a CSV file, shown next to the study's own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from mbt_cli.core.tables import Column, TableData
from mbt_cli.errors import UsageError

_HINT = "the first line names the columns: axes such as benchmark and model, then metric and value"


def read_reference(path: Path) -> pl.DataFrame:
    """A reference file: axes and `metric` as text, `value` as a number.

    Raises:
        UsageError: The file cannot be read as CSV, a column is missing, or a value is not a
            number.
    """
    if not path.is_file():
        raise UsageError(f"no file `{path}` for `reference`", hint=_HINT)
    try:
        frame = pl.read_csv(path, infer_schema=False, comment_prefix="#")
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UsageError(f"cannot read the reference `{path}`: {reason}", hint=_HINT) from error
    missing = [name for name in ("metric", "value") if name not in frame.columns]
    if missing:
        raise UsageError(f"the reference `{path}` has no column `{missing[0]}`", hint=_HINT)
    numbers = frame["value"].str.strip_chars().cast(pl.Float64, strict=False)
    for line, (text, number) in enumerate(zip(frame["value"], numbers, strict=True), start=1):
        if number is None:
            raise UsageError(f"`{path}`, row {line}: `{text}` is not a number", hint=_HINT)
    return frame.with_columns(numbers.alias("value"))


def with_reference(table: TableData, reference: pl.DataFrame, axes: Sequence[str]) -> TableData:
    """The table with the published number and the difference after each metric of the reference.

    Args:
        table: Its rows hold the axes as text columns.
        reference: `metric`, `value` (Float64) and axes as text columns. An axis that is missing or
            empty matches every row.
        axes: Names of the study's axes.

    Raises:
        ValueError: Two lines of the reference match the same number.
    """
    columns: list[Column] = []
    rows = table.rows
    for column in table.columns:
        columns.append(column)
        published = _published(rows, reference.filter(pl.col("metric") == column.key), axes)
        if column.kind == "label" or not any(value is not None for value in published):
            continue
        scale = 100.0 if column.unit == "percent" else 1.0
        values = pl.Series(f"{column.key}_published", published, dtype=pl.Float64) / scale
        gap = (rows[column.key] - values).alias(f"{column.key}_gap")
        rows = rows.with_columns(values, gap)
        added = ((values.name, f"{column.title}, published"), (gap.name, "difference"))
        columns += [replace(column, key=key, title=title, best="none") for key, title in added]
    return replace(table, columns=columns, rows=rows)


def _published(
    rows: pl.DataFrame, reference: pl.DataFrame, axes: Sequence[str]
) -> list[float | None]:
    shared = [axis for axis in axes if axis in reference.columns and axis in rows.columns]
    lines = reference.select(*shared, "value").rows(named=True)
    return [_value_of(row, lines, shared) for row in rows.iter_rows(named=True)]


def _value_of(
    row: Mapping[str, str | None], lines: Sequence[Mapping[str, str | float]], axes: Sequence[str]
) -> float | None:
    values = {
        line["value"] for line in lines if all(line[axis] in (None, "", row[axis]) for axis in axes)
    }
    if len(values) > 1:
        where = ", ".join(f"{axis} {row[axis]}" for axis in axes)
        raise ValueError(f"the reference has {len(values)} values for {where}")
    return float(values.pop()) if values else None
