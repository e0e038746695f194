"""How far two judges agree, for people and for scripts."""

from pathlib import Path

import orjson
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mbt_cli.core.agreement import NO_VERDICT
from mbt_cli.core.number_text import number_text
from mbt_cli.stages.agreeing import JudgeAgreement


def agreement_json(first: Path, second: Path, found: JudgeAgreement) -> str:
    """One JSON object: both folders, kappa, and the confusion table."""
    told = {
        "first": str(first),
        "second": str(second),
        "column": found.column,
        "kappa": found.kappa,
        "read": found.read,
        "same": found.same,
        "confusion": found.table.to_dicts(),
    }
    return orjson.dumps(told).decode()


def agreement_view(first: Path, second: Path, found: JudgeAgreement) -> RenderableType:
    """Kappa in a line, and what each said, the first judge in rows."""
    said = sorted({*found.table["first"], *found.table["second"]}, key=_last)
    counts = {(row["first"], row["second"]): row["count"] for row in found.table.to_dicts()}
    table = Table(title=f"{found.column}: first judge in rows, second in columns")
    table.title_justify = "left"
    table.add_column("")
    for name in said:
        table.add_column(Text(name), justify="right")
    for row in said:
        table.add_row(Text(row), *(str(counts.get((row, column), 0)) for column in said))
    share = number_text(found.same / found.read, unit="percent")
    kappa = number_text(found.kappa, decimals=3)
    line = f"Cohen's kappa {kappa}; the same in {found.same} of {found.read} ({share} %)"
    return Group(Text(f"first:  {first}\nsecond: {second}"), Text(line), table)


def _last(name: str) -> tuple[bool, str]:
    """What is no verdict stands behind the verdicts."""
    return name in NO_VERDICT, name
