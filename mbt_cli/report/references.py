"""Published numbers in a CSV file, shown next to the study's own."""

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from mbt_cli.core.harness import pattern_of
from mbt_cli.core.names import nearest
from mbt_cli.core.tables import Column, TableData
from mbt_cli.errors import UsageError

_HINT = "the first line names the columns: axes such as benchmark and model, then metric and value"
_LINE = "line"
_SHIPPED = Path(__file__).with_name("published")
_REMARKS = ("source", "note")
"""Columns for the reader of the file."""


def reference_file(name: str) -> Path:
    """The file that a manifest names: an existing one, or else a shipped one, without its suffix.

    Example:
        >>> reference_file("qwen3-1.7b-base").name, reference_file("none.csv").name
        ('qwen3-1.7b-base.csv', 'none.csv')
    """
    path, shipped = Path(name).expanduser(), _SHIPPED / f"{name}.csv"
    return shipped if not path.exists() and shipped.is_file() else path


def is_shipped(path: Path) -> bool:
    """Whether a file came with mbt. It may have lines about more than a study has."""
    return path.parent == _SHIPPED


def read_reference(path: Path) -> pl.DataFrame:
    """A reference file: axes and `metric` as text, `value` as a number, `line` in the file.

    Raises:
        UsageError: The file cannot be read as CSV, a column is missing, or a value is not a
            number.
    """
    if not path.is_file():
        shipped = ", ".join(f"`{one.stem}`" for one in sorted(_SHIPPED.glob("*.csv")))
        raise UsageError(
            f"no file `{path}` (relative to {Path.cwd()}), and none of this name is shipped",
            hint=f"shipped are {shipped}; of a file of your own, {_HINT}",
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read the reference `{path}`: {reason}", hint=_HINT) from error
    lines = [
        (number, [value.strip() for value in next(csv.reader([line]))])
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise UsageError(f"cannot read the reference `{path}`: it is empty", hint=_HINT)
    (_, columns), *rows = lines
    for name in ("metric", "value"):
        if name not in columns:
            raise UsageError(f"the reference `{path}` has no column `{name}`", hint=_HINT)
    if len(set(columns)) < len(columns):
        raise UsageError(f"the reference `{path}` has a column twice", hint=_HINT)
    found: dict[str, list[str | float | int]] = {name: [] for name in (*columns, _LINE)}
    for number, values in rows:
        where = f"`{path}`, line {number}"
        if len(values) != len(columns):
            what = f"has {len(values)} values for {len(columns)} columns"
            raise UsageError(f"{where}: {what}", hint=_HINT)
        for name, value in zip(columns, values, strict=True):
            found[name].append(_number(value, where) if name == "value" else value)
        found[_LINE].append(number)
    schema = {name: pl.Float64 if name == "value" else pl.String for name in columns}
    return pl.DataFrame(found, schema={**schema, _LINE: pl.Int64})


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{where}: `{text}` is not a number", hint=_HINT)
    return number


def reference_problems(
    path: Path, axes: Mapping[str, Collection[str]], metrics: Collection[str]
) -> Iterator[str]:
    """What is wrong with a reference file: that it cannot be read, or each unknown name.

    A shipped one is only wrong if none of its lines is about the study.

    Args:
        path: The file.
        axes: Axis to the values that it has in the study.
        metrics: Names of metrics; others count as known if they have an `@`, or begin with one of
            these and `_` or `:`; `*` in a name stands for any text.
    """
    try:
        reference = read_reference(path)
    except UsageError as error:
        yield f"{error.message}; {error.hint}"
        return
    names = [name for name in reference.columns if name not in ("metric", "value", _LINE)]
    for name in names:
        if name not in axes and name not in _REMARKS:
            yield f"`{path}`: no axis `{name}`; {nearest(name, [*axes, *_REMARKS])}"
    if is_shipped(path):
        of_axes = {name: reference[name].unique().sort() for name in names if name in axes}
        known = [pl.col(name).is_in(["", *axes[name]]) for name in of_axes]
        if reference.filter(known).is_empty():
            has = "; ".join(f"{a}: {', '.join(values)}" for a, values in of_axes.items())
            yield f"no line of `{path.stem}` is about this study; it has {has}"
        return
    for row in reference.iter_rows(named=True):
        where, metric = f"`{path}`, line {row[_LINE]}", row["metric"]
        if not _is_known(metric, metrics):
            yield f"{where}: no metric `{metric}`; {nearest(metric, metrics)}"
        for axis in (name for name in names if name in axes and row[name]):
            if row[axis] not in axes[axis]:
                yield f"{where}: no {axis} `{row[axis]}`; {nearest(row[axis], axes[axis])}"


def _is_known(metric: str, metrics: Collection[str]) -> bool:
    is_part = any(metric.startswith((f"{known}_", f"{known}:")) for known in metrics)
    is_found = any(pattern_of(known).fullmatch(metric) for known in metrics if "*" in known)
    return metric in metrics or "@" in metric or is_part or is_found


def lines_without_number(
    reference: pl.DataFrame, tables: Sequence[TableData], axes: Sequence[str]
) -> list[int]:
    """Lines of a reference that stand beside no number of any table."""
    shown: set[int] = set()
    for table in tables:
        keys = [column.key for column in table.columns if column.kind == "number"]
        shared = [axis for axis in axes if axis in reference and axis in table.rows]
        cells = table.rows.select(shared).unique().rows(named=True) if shared else [{}]
        for line in reference.filter(pl.col("metric").is_in(keys)).iter_rows(named=True):
            if any(all(line[a] in (None, "", cell[a]) for a in shared) for cell in cells):
                shown.add(line[_LINE])
    return [line for line in reference[_LINE] if line not in shown]


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
