"""Benchmarks side by side: groups of columns from the rows of a table, and what fits in a width."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import polars as pl

from mbt_cli.core.tables import COUNTS, IS_MEAN, Column, TableData

_BETWEEN = "/"
"""Between the group and the key of a column; names of benchmarks have none."""


def group_labels(rows: pl.DataFrame, labels: Sequence[str], axis: str) -> list[str]:
    """The labels that belong to the groups: they differ, but each group has one value of them.

    Such is the split of a study that has another one for each benchmark.

    Args:
        rows: Rows of a table.
        labels: Its label columns.
        axis: The one whose values become groups.
    """
    cells = rows.filter(~pl.col(IS_MEAN)) if IS_MEAN in rows.columns else rows
    others = [label for label in labels if label != axis]
    if not others or cells.is_empty():
        return []
    counts = cells.group_by(axis).agg(pl.col(others).n_unique()).drop(axis).max().row(0, named=True)
    return [label for label in others if counts[label] == 1 and cells[label].n_unique() > 1]


def side_by_side(table: TableData, *, mean_first: bool = False) -> TableData:
    """The table with a group of columns for each value of its `column_groups`.

    A row holds what was in several rows: `GROUP/KEY` takes the place of KEY, and `GROUP/address` is
    the address of its cell. A group has the columns in which it has a number; a count that is equal
    in all its rows is part of its heading. Other tables are returned as they are.

    Args:
        table: The table.
        mean_first: Whether means over benchmarks are the first group instead of the last.
    """
    axis = table.column_groups
    if not axis:
        return table
    of_groups = group_labels(table.rows, table.labels, axis)
    labels = [label for label in table.labels if label not in (axis, *of_groups)]
    if not labels or table.rows.select(*labels, axis).is_duplicated().any():
        return table
    rows = sorted_by(table.rows.select(labels).unique(maintain_order=True), labels)
    numbers = [column for column in table.columns if column.kind == "number"]
    columns = [column for column in table.columns if column.key in labels]
    for group, part in _groups(table.rows, axis, mean_first=mean_first):
        title, shown = _heading(group, part, numbers, of_groups)
        renamed = {
            name: f"{group}{_BETWEEN}{name}" for name in part.columns if name not in (*labels, axis)
        }
        own = part.drop(axis).rename(renamed)
        rows = rows.join(own, on=labels, how="left", nulls_equal=True, maintain_order="left")
        columns += [replace(c, key=renamed[c.key], group=title) for c in shown]
    return replace(
        table,
        columns=columns,
        rows=rows,
        compared_within=[label for label in table.compared_within if label in labels],
        column_groups="",
        row_groups=groups_by_model(rows, labels),
    )


def share_filled(table: TableData, axis: str) -> float:
    """Share of the pairs of a method and a value of the axis that have a row.

    0 if the axis is not a label, or several rows have the same pair.
    """
    if axis not in table.labels:
        return 0.0
    cells = table.rows
    if IS_MEAN in cells.columns:
        cells = cells.filter(~pl.col(IS_MEAN))
    own = group_labels(cells, table.labels, axis)
    labels = [label for label in table.labels if label not in (axis, *own)]
    if not labels or cells.select(*labels, axis).is_duplicated().any():
        return 0.0
    pairs = cells.select(labels).unique().height * cells[axis].n_unique()
    return cells.height / pairs if pairs else 0.0


def column_of(key: str) -> tuple[str, str]:
    """The group of a column from `side_by_side`, and its key in the table that it was made from.

    Example:
        >>> column_of("hotpotqa/exact_match"), column_of("exact_match")
        (('hotpotqa', 'exact_match'), ('', 'exact_match'))
    """
    group, between, own = key.partition(_BETWEEN)
    return (group, own) if between else ("", key)


def _groups(
    rows: pl.DataFrame, axis: str, *, mean_first: bool
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Each value of the axis with its rows."""
    is_mean = pl.col(IS_MEAN) if IS_MEAN in rows.columns else pl.lit(value=False)
    ordered = rows.sort(is_mean, descending=mean_first, maintain_order=True)
    for part in ordered.partition_by(axis, maintain_order=True):
        yield str(part[axis][0]), part


def _heading(
    group: str, rows: pl.DataFrame, columns: Sequence[Column], labels: Sequence[str]
) -> tuple[str, list[Column]]:
    """The heading of a group, and the columns below it."""
    parts = [str(value) for label in labels if (value := rows[label].drop_nulls().first())]
    shown = []
    for column in columns:
        found = rows[column.key].drop_nulls()
        if column.key in COUNTS and found.n_unique() <= 1:
            if found.len() and found[0]:
                parts.append(f"{column.key} {found[0]}")
        elif found.len() or column.key in COUNTS:
            shown.append(column)
    return f"{group} ({', '.join(parts)})" if parts else group, shown


def groups_of(table: TableData) -> list[tuple[str, TableData]]:
    """Heading of each group of columns, and a table of it alone, with all labels."""
    titles = dict.fromkeys(column.group for column in table.columns if column.group)
    parts = {title: _only(table, (title,)) for title in titles}
    return [
        (title, replace(part, columns=[replace(c, group="") for c in part.columns]))
        for title, part in parts.items()
    ]


def packed(table: TableData, widths: Mapping[str, float], limit: float) -> list[TableData]:
    """Tables with as many whole groups of columns as fit beside the labels.

    Args:
        table: From `side_by_side`.
        widths: Key of each column to its width.
        limit: The width of a table, in the same unit.
    """
    free = limit - sum(widths[label] for label in table.labels)
    parts: list[list[str]] = []
    left = 0.0
    for title in dict.fromkeys(column.group for column in table.columns if column.group):
        width = sum(widths[column.key] for column in table.columns if column.group == title)
        if not parts or width > left:
            parts.append([])
            left = free
        parts[-1].append(title)
        left -= width
    return [_only(table, titles) for titles in parts] or [table]


def _only(table: TableData, titles: Sequence[str]) -> TableData:
    columns = [c for c in table.columns if c.kind == "label" or c.group in titles]
    return replace(table, columns=columns, notes=())


def sorted_by(rows: pl.DataFrame, axes: Sequence[str]) -> pl.DataFrame:
    """Rows sorted by their axes, the values of an axis in the order of their first row."""
    ranked = rows
    for axis in axes:
        order = rows[axis].unique(maintain_order=True)
        ranks = pl.DataFrame({axis: order, f"{axis}_rank": range(len(order))})
        ranked = ranked.join(ranks, on=axis, how="left", nulls_equal=True)
    names = [f"{axis}_rank" for axis in axes]
    return ranked.sort(names, maintain_order=True).drop(names) if names else ranked


def groups_by_model(rows: pl.DataFrame, labels: Sequence[str]) -> list[str]:
    """The labels up to the model, whose rows are a group each; none if every row is alone."""
    groups = labels[: labels.index("model") + 1] if "model" in labels else []
    is_one = not groups or len(groups) == len(labels)
    return [] if is_one or rows.select(groups).n_unique() == rows.height else list(groups)


def row_group_starts(table: TableData) -> list[bool]:
    """Whether each row is the first of its group; all False for a table without groups."""
    if not table.row_groups or not table.rows.height:
        return [False] * table.rows.height
    keys: list[tuple[Any, ...]] = table.rows.select(table.row_groups).rows()
    return [True, *(one != other for one, other in pairwise(keys))]
