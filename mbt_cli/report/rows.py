"""From score summaries to the rows of a table: one row a cell, its metrics side by side."""

from collections.abc import Iterator, Sequence

import polars as pl

from mbt_cli.core.tables import ReportInputs, TableData

PARTS = ("", "_low", "_high", "_n", "_failed")
"""What `TableData.rows` holds of one number, behind the column's key."""

_OF_SUMMARY = {"": "value", "_low": "low", "_high": "high", "_n": "n", "_failed": "failed"}
ADDRESS = "address"


def cell_rows(inputs: ReportInputs, metrics: Sequence[str]) -> pl.DataFrame:
    """One row a scored cell, missing cells with nulls, in the order of the manifest.

    Returns:
        `address`, every axis as text, and METRIC, METRIC_low, METRIC_high, METRIC_n and
        METRIC_failed for each metric, over all questions (breakdowns left out).
    """
    whole = inputs.summary.filter(pl.col("by").is_null())
    axes = list(inputs.axes)
    rows = whole.select(ADDRESS, *axes).unique(maintain_order=True)
    for metric in metrics:
        rows = rows.join(_of_metric(whole, metric), on=ADDRESS, how="left")
    absent = [_axes_of(address, axes) for address in inputs.missing]
    schema = {ADDRESS: pl.String(), **dict.fromkeys(axes, pl.String())}
    rows = pl.concat([rows, pl.DataFrame(absent, schema=schema)], how="diagonal")
    return _in_order_of_appearance(rows, axes)


def group_rows(inputs: ReportInputs, metrics: Sequence[str], by: str) -> pl.DataFrame:
    """One row a scored cell and group of the breakdown `by`, as `cell_rows` gives them.

    The group stands in a text column of the breakdown's name, behind the axes.
    """
    parts = inputs.summary.filter(pl.col("by") == by).with_columns(pl.col("group").alias(by))
    keys = [ADDRESS, by]
    rows = parts.select(ADDRESS, *inputs.axes, by).unique(maintain_order=True)
    for metric in metrics:
        rows = rows.join(_of_metric(parts, metric, keys), on=keys, how="left")
    order = {"easy": "0", "medium": "1", "hard": "2"}
    ranked = rows.sort(pl.col(by).replace(order), maintain_order=True)
    return _in_order_of_appearance(ranked, [*inputs.axes, by])


def present(inputs: ReportInputs, metrics: Sequence[str]) -> list[str]:
    """Those of the metrics that at least one cell has."""
    there = set(inputs.summary["metric"])
    return [metric for metric in metrics if metric in there]


def unit_of(inputs: ReportInputs, metric: str) -> str:
    """Unit of a metric as its score gave it, `percent` where no cell has it."""
    units = inputs.summary.filter(pl.col("metric") == metric)["unit"]
    return str(units[0]) if len(units) else "percent"


def varying(rows: pl.DataFrame, axes: Sequence[str], *, always: Sequence[str] = ()) -> list[str]:
    """Axes in which rows differ, and those that are always shown where they exist."""
    return [
        axis
        for axis in axes
        if rows[axis].n_unique() > 1 or (axis in always and rows[axis].null_count() < rows.height)
    ]


def pinned_note(rows: pl.DataFrame, axes: Sequence[str], labels: Sequence[str]) -> list[str]:
    """A note with the axes that no column shows, since all rows agree in them."""
    pinned = [axis for axis in axes if axis not in labels and rows.height and rows[axis][0]]
    told = ", ".join(f"{axis} {rows[axis][0]}" for axis in pinned)
    return [f"All rows: {told}."] if told else []


def missing_note(inputs: ReportInputs) -> list[str]:
    """A note with the number of cells that have not been run."""
    count = len(inputs.missing)
    if not count:
        return []
    return [f"{count} cell{' is' if count == 1 else 's are'} not run yet and shown as a dash."]


def question_notes(table: TableData) -> list[str]:
    """Notes that warn of numbers over different numbers of questions in one comparison."""
    notes = []
    for column in table.columns:
        count = f"{column.key}_n"
        if column.kind != "number" or count not in table.rows.columns:
            continue
        if any(group[count].drop_nulls().n_unique() > 1 for group in compared_groups(table)):
            notes.append(f"{column.title}: rows are over different numbers of questions.")
    return notes


def failed_notes(table: TableData) -> list[str]:
    """Notes that say why a number is a dash where its cell was scored."""
    notes = []
    for column in table.columns:
        failed = f"{column.key}_failed"
        if column.kind != "number" or failed not in table.rows.columns:
            continue
        lost = table.rows.filter(pl.col(column.key).is_null() & (pl.col(failed) > 0))
        if lost.height:
            rows = "1 row" if lost.height == 1 else f"{lost.height} rows"
            most = max(lost[failed])
            notes.append(
                f"{column.title}: a dash in {rows}, where nothing could be counted "
                f"({most} replies or verdicts failed); `mbt show` of the cell tells the reasons."
            )
    return notes


def compared_groups(table: TableData) -> Iterator[pl.DataFrame]:
    """Rows whose numbers are compared with each other, `row` being their number in the table."""
    rows = table.rows.with_row_index("row")
    if not table.compared_within:
        yield rows
        return
    yield from rows.partition_by(*table.compared_within, maintain_order=True)


def _of_metric(whole: pl.DataFrame, metric: str, keys: Sequence[str] = (ADDRESS,)) -> pl.DataFrame:
    parts = [pl.col(_OF_SUMMARY[part]).alias(f"{metric}{part}") for part in PARTS]
    return whole.filter(pl.col("metric") == metric).select(*keys, *parts)


def _axes_of(address: str, axes: Sequence[str]) -> dict[str, str | None]:
    values = dict(part.split("=", 1) for part in address.split("/")[1:])
    return {ADDRESS: address, **{axis: values.get(axis) for axis in axes}}


def _in_order_of_appearance(rows: pl.DataFrame, axes: Sequence[str]) -> pl.DataFrame:
    """Rows sorted by their axes, values in the order in which they first come."""
    ranked = rows
    for axis in axes:
        order = rows[axis].unique(maintain_order=True)
        ranks = pl.DataFrame({axis: order, f"{axis}_rank": range(len(order))})
        ranked = ranked.join(ranks, on=axis, how="left", nulls_equal=True)
    names = [f"{axis}_rank" for axis in axes]
    return ranked.sort(names, maintain_order=True).drop(names) if names else ranked
