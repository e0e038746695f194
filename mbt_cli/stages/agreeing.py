"""Two judge cells over the same rollouts: how far the judges agree."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl
from pydantic import TypeAdapter

from mbt_cli.core.agreement import both_read, cohens_kappa, confusion
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Judge
from mbt_cli.registry import AnyJudge
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.reading import read_rows, require_lineage

_JUDGES: TypeAdapter[Judge] = TypeAdapter(AnyJudge)


@dataclass(frozen=True)
class JudgeAgreement:
    """What two judges say of the same rollouts.

    Args:
        column: What they were compared on, such as `grade`.
        kappa: Cohen's kappa over what both could read; NaN where it is not defined.
        read: Verdicts that both could read.
        same: Of those, the ones on which they agree.
        table: `first`, `second`, `count`, as `core.agreement.confusion` gives it.
    """

    column: str
    kappa: float
    read: int
    same: int
    table: pl.DataFrame


def are_verdicts(first: Path, second: Path) -> bool:
    """Whether both are judge cells."""
    return require_lineage(first).kind == require_lineage(second).kind == "judge"


def agreement(first: Path, second: Path) -> JudgeAgreement:
    """Cohen's kappa and the confusion table of two judge cells.

    Raises:
        UsageError: The two gave verdicts of other kinds, or on no rollout in common.
        MissingInputError: One of them is not there.
    """
    lineages = [require_lineage(folder) for folder in (first, second)]
    columns = [_compared_column(lineage) for lineage in lineages]
    if columns[0] != columns[1]:
        raise UsageError(
            f"`{first}` says `{columns[0]}`, `{second}` says `{columns[1]}`",
            hint="compare two cells of the same judge prompt",
        )
    said = [
        read_rows(folder, lineage)
        .select("question_id", "sample", "vote", columns[0], "failure")
        .collect()
        for folder, lineage in zip((first, second), lineages, strict=True)
    ]
    table = confusion(said[0], said[1], columns[0])
    both = both_read(table)
    if both.is_empty():
        raise UsageError("no rollout has a verdict that both judges gave and that can be read")
    same = both.filter(pl.col("first") == pl.col("second"))
    return JudgeAgreement(
        columns[0], cohens_kappa(table), int(both["count"].sum()), int(same["count"].sum()), table
    )


def _compared_column(lineage: Lineage) -> str:
    written = {k: v for k, v in lineage.spec["judge"].items() if k != "version"}
    return _JUDGES.validate_python(written).compared_column
