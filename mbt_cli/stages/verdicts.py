"""Verdicts of several judge cells, by what kind of judge gave them."""

from collections.abc import Iterable

import polars as pl

from mbt_cli.errors import StageError
from mbt_cli.store.lineage import Lineage


def by_judge(cells: Iterable[tuple[Lineage, pl.LazyFrame]]) -> dict[str, pl.DataFrame]:
    """Kind of the judge to its verdicts, without the messages.

    A judge counts by its kind, under whatever name the manifest has it.

    Raises:
        StageError: Two cells hold verdicts of one kind on the same rollouts.
    """
    found: dict[str, tuple[str, pl.LazyFrame]] = {}
    for lineage, rows in cells:
        kind = str(lineage.spec["judge"]["kind"])
        if kind in found:
            raise StageError(
                f"`{found[kind][0]}` and `{lineage.address}` are both verdicts of `{kind}`",
                hint="let a score read one of them: "
                'verdicts = { stage = "...", where = { judge = "..." } }',
            )
        found[kind] = (lineage.address, rows)
    return {kind: rows.drop("messages").collect() for kind, (_, rows) in found.items()}
