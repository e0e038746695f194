"""`mbt compare`: differences of cells paired by question, and the agreement of two judges."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from glob import glob
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.printing import printer
from mbt_cli.core.number_text import ABSENT, counted, number_text, p_text
from mbt_cli.engine.compare import (
    JudgeAgreement,
    agreement,
    are_verdicts,
    compared,
    pairs,
    pooled,
)
from mbt_cli.errors import UsageError
from mbt_cli.report.metrics import display_of
from mbt_cli.scores.comparison import SIGNIFICANT, UNPAIRED, Comparison, Margins
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
    metrics = comparison.metrics
    is_paired = not (metrics["test"] == UNPAIRED).any()
    title = "paired on common questions" if is_paired else "numbers of harnesses"
    table = Table(title=title, title_justify="left")
    is_tested = metrics["margin"].is_not_null().any()
    columns = ["metric", "first", "second", "first - second\n95 %", "p\nHolm"]
    columns += ["better 1st : 2nd\nquestions"] if is_paired else []
    columns += ["equivalent\n90 %", "p\nHolm"] if is_tested else []
    for column in columns:
        is_name = column == "metric"
        table.add_column(column, justify="left" if is_name else "right", no_wrap=not is_name)
    for row in metrics.iter_rows(named=True):
        table.add_row(
            *_cells(row)[: None if is_paired else -1], *(_equivalent(row) if is_tested else ())
        )
    family = metrics["p_holm"].count()
    notes = [
        "Differences are first minus second: above 0, the first cell has the higher value.",
        f"Holm: corrected over the {family} metrics of this pair (`mbt help metrics`).",
    ]
    if not is_paired:
        notes.append(
            "The questions are not known: intervals and p are from the errors of both, as if of "
            "other questions, so they are wide."
        )
    if is_tested:
        notes.append(_equivalence_note(metrics))
    parts: list[RenderableType] = [
        Text(f"first:  {first}\nsecond: {second}", overflow="fold"),
        table,
        *(Text(note, style="dim") for note in notes),
    ]
    if clusters := comparison.metrics.drop_nulls("clusters").sort("clusters")[-1:].to_dicts():
        n, m = clusters[0]["questions"], clusters[0]["clusters"]
        parts.append(Text(f"{n:,} questions in {m:,} clusters, the unit of intervals and tests"))
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
        f"{text(row['difference'])}\n{_ends(row, '')}",
        f"{p_text(row['p'])}\n{p_text(row['p_holm'])}",
        f"{_count(row['first_better'])} : {_count(row['second_better'])}\n{row['questions']}",
    ]


def _ends(row: dict[str, Any], which: str) -> str:
    ends = (row[f"low{which}"], row[f"high{which}"])
    texts = (number_text(x, unit=row["unit"], decimals=_decimals(row["unit"])) for x in ends)
    return ABSENT if None in ends else " to ".join(texts)


def _equivalent(row: dict[str, Any]) -> list[str]:
    """Whether two one-sided tests show equivalence, with the 90 % interval and both p values."""
    if row["margin"] is None:
        return [ABSENT, ABSENT]
    margin = f"within {row['margin'] * (100 if row['unit'] == 'percent' else 1):g}"
    found = _is_equivalent(row)
    verdict = {True: margin, False: "not shown", None: "no interval"}[found]
    ends = "" if found is None else f"\n{_ends(row, '_90')}"
    ps = f"{p_text(row['p_equivalent'])}\n{p_text(row['p_equivalent_holm'])}"
    return [f"{verdict}{ends}", ps]


def _corrected(row: dict[str, Any]) -> float | None:
    """Holm's p value; a metric about the judge is not corrected."""
    held: float | None = row["p_equivalent_holm"]
    p: float | None = row["p_equivalent"]
    return p if held is None else held


def _is_equivalent(row: dict[str, Any]) -> bool | None:
    p = _corrected(row)
    return None if p is None else p < SIGNIFICANT


def _equivalence_note(metrics: pl.DataFrame) -> str:
    family = metrics["p_equivalent_holm"].count()
    over = f", Holm-corrected over {family} metrics," if family > 1 else ""
    return (
        f"within M: the cells differ by less than M, by two one-sided tests{over} at "
        f"{SIGNIFICANT:.0%}; not shown: they may differ by more."
    )


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
    """One JSON object: both folders, kappa with its interval, and the confusion table."""
    content = {
        "first": str(first),
        "second": str(second),
        "column": found.scale.column,
        "kappa": found.kappa["value"],
        "low": found.kappa["low"],
        "high": found.kappa["high"],
        "weights": found.settings["weights"],
        "missing": _why_missing(found),
        "questions": found.kappa["n"],
        "read": found.parsed,
        "same": found.same,
        "confusion": found.table.to_dicts(),
    }
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY).decode()


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
    value, low, high = (number_text(found.kappa[k], decimals=3) for k in ("value", "low", "high"))
    name = "Weighted kappa (quadratic)" if found.scale.is_ordered else "Cohen's kappa"
    interval = f"[{low}, {high}]"
    if why := _why_missing(found):
        interval = f"(no interval: {why})" if found.kappa["value"] is not None else f"({why})"
    line = f"{name} {value} {interval}; the same in {found.same} of {found.parsed} ({share} %)"
    return Group(Text(f"first:  {first}\nsecond: {second}"), Text(line), table)


def _why_missing(found: JudgeAgreement) -> str | None:
    """Why kappa or its interval is missing."""
    settings = found.settings
    why = settings.get("undefined") or settings.get("no_interval")
    return None if why is None else str(why)


@dataclass(frozen=True, slots=True)
class Settings:
    """How cells are compared.

    Args:
        resamples: Bootstrap resamples; None for those of the cells.
        seed: Seed of the resamples; None for the study's.
        margins: Margins of equivalence.
    """

    resamples: int | None
    seed: int | None
    margins: Margins


def read_margins(texts: Sequence[str]) -> Margins:
    """The margins of `--equivalent`, each MARGIN or METRIC=MARGIN.

    Raises:
        UsageError: One is not a number above 0, or a metric has two.
    """
    found: dict[str, float] = {}
    for text in texts:
        metric, _, number = text.rpartition("=")
        try:
            margin = float(number)
        except ValueError:
            margin = math.nan
        if not 0 < margin < math.inf:
            raise UsageError(
                f"`--equivalent {text}`: `{number}` is not a number above 0", hint=_MARGIN_HINT
            )
        if metric in found:
            raise UsageError(f"`--equivalent {text}`: it is given twice", hint=_MARGIN_HINT)
        found[metric] = margin
    return Margins(found.pop("", None), found)


_MARGIN_HINT = "such as `--equivalent 2` (points for per cent) or `--equivalent tokens=50`"


def compare(
    first: str, second: str, settings: Settings, *, pool: bool, show: int, as_json: bool
) -> None:
    """Print each pair of cells side by side, or all pairs as one; agreement for two judge cells.

    Args:
        first: Folder or glob of cells.
        second: Folder or glob of the cells that they are compared with.
        settings: How they are compared.
        pool: Compare the questions of all pairs together.
        show: Number of the most different questions to show.
        as_json: Print JSON.

    Raises:
        UsageError: Margins are given for judge cells.
    """
    out = printer()
    found_pairs = pairs(cells_of(first), cells_of(second))
    matched = [(left, right) for left, right in found_pairs if left.resolve() != right.resolve()]
    if not matched:
        cell = found_pairs[0][0] if len(found_pairs) == 1 else first
        hint = "name two cells, such as runs/STUDY/scores/**/model=A and .../model=B"
        raise UsageError(f"`{cell}` is on both sides", hint=hint)
    if pool:
        _compare_pooled(matched, (first, second), settings, show=show, as_json=as_json)
        return
    views: list[RenderableType | str] = []  # printed when all are made, so that an error is alone
    for left, right in matched:
        if are_verdicts(left, right):
            if settings.margins != Margins():
                raise UsageError(
                    "`--equivalent` tests differences of metrics; these are judge cells",
                    hint="compare the score cells that read these verdicts",
                )
            found = agreement(left, right, resamples=settings.resamples, seed=settings.seed)
            as_text = agreement_json if as_json else agreement_view
            views.append(as_text(left, right, found))
            continue
        comparison = compared(
            left,
            right,
            resamples=settings.resamples,
            seed=settings.seed,
            margins=settings.margins,
        )
        if as_json:
            views.append(comparison_json(left, right, comparison))
        else:
            views.append(comparison_view(left, right, comparison, show))
    for view in views:
        typer.echo(view) if isinstance(view, str) else out.print(view)


def _compare_pooled(
    matched: Sequence[tuple[Path, Path]],
    asked: tuple[str, str],
    settings: Settings,
    *,
    show: int,
    as_json: bool,
) -> None:
    """Print the comparison of two methods over all pairs of cells."""
    if any(are_verdicts(*pair) for pair in matched):
        raise UsageError("`--pool` is for differences of metrics; these are judge cells")
    found = pooled(
        matched, resamples=settings.resamples, seed=settings.seed, margins=settings.margins
    )
    left, right = (Path(pattern) for pattern in asked)
    if as_json:
        document = orjson.loads(comparison_json(left, right, found))
        cells = [{"first": str(one), "second": str(two)} for one, two in matched]
        typer.echo(orjson.dumps({**document, "pairs": cells}).decode())
        return
    out = printer()
    out.print(comparison_view(left, right, found, show))
    lines = [f"  {one}  and  {two}" for one, two in matched]
    out.print(
        Text(f"pooled over {counted(len(matched), 'pair')} of cells, each question counts once:")
    )
    out.print(Text("\n".join(lines), style="dim", overflow="fold"))
