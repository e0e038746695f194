"""`mbt compare`: differences of cells paired by question, and the agreement of two judges."""

from collections.abc import Sequence
from difflib import get_close_matches
from glob import glob
from pathlib import Path
from typing import Any

import orjson
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.printing import printer
from mbt_cli.core.number_text import number_text, p_text
from mbt_cli.engine.compare import JudgeAgreement, agreement, are_verdicts, compared, pairs
from mbt_cli.errors import UsageError
from mbt_cli.report.metrics import display_of
from mbt_cli.scores.comparison import Comparison
from mbt_cli.scores.votes import NO_VERDICT
from mbt_cli.store.lineage import LINEAGE


def cells_of(pattern: str) -> Sequence[Path]:
    """Finished cells at or below the paths that a glob matches.

    Raises:
        UsageError: There are none.
    """
    roots = [Path(p) for p in sorted(glob(pattern, recursive=True))]  # noqa: PTH207  a pattern may be absolute
    found = sorted({p.parent for root in roots for p in root.rglob(LINEAGE)})
    if not found:
        raise UsageError(f"`{pattern}` contains no finished cell", hint=_where_cells_are(pattern))
    return found


def _where_cells_are(pattern: str) -> str:
    """The folder with the most similar name to the first missing one, else the form of such paths.

    Searches only the siblings of that folder; anything else could be a whole disk.
    """
    path = Path(pattern)
    root = next((folder for folder in path.parents if folder.is_dir()), Path())
    first, *rest = path.parts[len(root.parts) :] or ("",)
    names = [entry.name for entry in root.iterdir() if entry.name != first] if root.name else []
    if close := get_close_matches(first, names, n=1, cutoff=0.5):
        return f"did you mean `{root.joinpath(close[0], *rest)}`?"
    return "cells are in runs/STUDY/STAGE/AXIS=VALUE/..."


def comparison_json(first: Path, second: Path, comparison: Comparison) -> str:
    """One JSON object: both folders, and a row per metric."""
    rows = comparison.metrics.to_dicts()
    return orjson.dumps({"first": str(first), "second": str(second), "metrics": rows}).decode()


def comparison_view(first: Path, second: Path, comparison: Comparison, show: int) -> RenderableType:
    """A table of differences, and the questions that differ most.

    `better` counts the questions with the higher value in the first and in the second cell.
    """
    table = Table(title="paired on common questions", title_justify="left")
    for column in ("metric", "first", "second", "difference\n95 %", "p\nHolm", "better\nof"):
        is_name = column == "metric"
        table.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name)
    for row in comparison.metrics.iter_rows(named=True):
        table.add_row(*_cells(row))
    parts: list[RenderableType] = [
        Text(f"first:  {first}\nsecond: {second}", overflow="fold"),
        table,
    ]
    if show:
        parts.append(_questions(comparison, show))
    return Group(*parts)


def _cells(row: dict[str, Any]) -> list[str]:
    def text(value: float | None) -> str:
        return number_text(value, unit=row["unit"], decimals=_decimals(row["unit"]))

    return [
        display_of(row["metric"]).title + (" (%)" if row["unit"] == "percent" else ""),
        text(row["first"]),
        text(row["second"]),
        f"{text(row['difference'])}\n{text(row['low'])} to {text(row['high'])}",
        f"{p_text(row['p'])}\n{p_text(row['p_holm'])}",
        f"{_count(row['first_better'])} : {_count(row['second_better'])}\n{row['questions']}",
    ]


def _decimals(unit: str) -> int:
    return 1 if unit in ("percent", "tokens") else 3


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _questions(comparison: Comparison, show: int) -> RenderableType:
    table = Table(title="questions that differ most", title_justify="left")
    for column in ("metric", "question", "first", "second"):
        table.add_column(column)
    for metric in comparison.metrics["metric"]:
        differing = comparison.questions.filter(
            (comparison.questions["metric"] == metric) & (comparison.questions["difference"] != 0)
        )
        for row in differing.head(show).iter_rows(named=True):
            table.add_row(metric, row["question_id"], f"{row['first']:g}", f"{row['second']:g}")
    return table


def agreement_json(first: Path, second: Path, found: JudgeAgreement) -> str:
    """One JSON object: both folders, kappa, and the confusion table."""
    content = {
        "first": str(first),
        "second": str(second),
        "column": found.scale.column,
        "kappa": found.kappa,
        "read": found.parsed,
        "same": found.same,
        "confusion": found.table.to_dicts(),
    }
    return orjson.dumps(content).decode()


def agreement_view(first: Path, second: Path, found: JudgeAgreement) -> RenderableType:
    """Kappa, and the confusion table with the first judge in rows."""
    found_values = {*found.table["first"], *found.table["second"]}
    parsed = found.scale.ordered(found_values - {*NO_VERDICT})
    values = [*parsed, *sorted(found_values & {*NO_VERDICT})]
    counts = {(row["first"], row["second"]): row["count"] for row in found.table.to_dicts()}
    table = Table(title=f"{found.scale.column}: first judge in rows, second in columns")
    table.title_justify = "left"
    table.add_column("")
    for name in values:
        table.add_column(Text(name), justify="right")
    for row in values:
        table.add_row(Text(row), *(str(counts.get((row, column), 0)) for column in values))
    share = number_text(found.same / found.parsed, unit="percent")
    kappa = number_text(found.kappa, decimals=3)
    line = f"Cohen's kappa {kappa}; the same in {found.same} of {found.parsed} ({share} %)"
    return Group(Text(f"first:  {first}\nsecond: {second}"), Text(line), table)


def compare(
    first: str, second: str, *, show: int, resamples: int, seed: int, as_json: bool
) -> None:
    """Print each pair of cells side by side; agreement for two judge cells.

    Args:
        first: Folder or glob of cells.
        second: Folder or glob of the cells that they are compared with.
        show: Number of the most different questions to show.
        resamples: Bootstrap resamples.
        seed: Seed of the resamples.
        as_json: Print JSON.
    """
    out = printer()
    for left, right in pairs(cells_of(first), cells_of(second)):
        if are_verdicts(left, right):
            found = agreement(left, right)
            if as_json:
                typer.echo(agreement_json(left, right, found))
            else:
                out.print(agreement_view(left, right, found))
            continue
        comparison = compared(left, right, resamples=resamples, seed=seed)
        if as_json:
            typer.echo(comparison_json(left, right, comparison))
        else:
            out.print(comparison_view(Path(left), Path(right), comparison, show))
