"""How much of a cell may fail before its stage does."""

from collections import Counter

import polars as pl

from mbt_cli.core.rows import GATE
from mbt_cli.errors import StageError

INHERITED = (
    *("rollout_failed", "solution_failed", "no_solution"),
    *("not_in_source", "not_valid_in_source", GATE),
)
"""How failures begin that a row has from what it was made from, or from a gate; the stage itself
did not fail there, so they never count against `max_failed_share`."""


class FailureShare:
    """Counts rows that failed in the stage itself, against the share that the study allows.

    Args:
        max_share: Of all rows of the cell, `max_failed_share` of the manifest.
    """

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._rows = 0
        self._reasons: Counter[str] = Counter()

    def add(self, frame: pl.DataFrame) -> None:
        """Count the rows of a frame."""
        self._rows += frame.height
        if "failure" in frame.columns:
            failures = frame["failure"].drop_nulls()
            self._reasons.update(f for f in failures if not f.startswith(INHERITED))

    def check(self, address: str) -> None:
        """Refuse a cell of which too much failed.

        Raises:
            StageError: With the commonest reasons.
        """
        failed = self._reasons.total()
        if failed <= self._max_share * self._rows:
            return
        most = "; ".join(f"{count} x {reason}" for reason, count in self._reasons.most_common(3))
        raise StageError(
            f"`{address}`: {failed} of {self._rows} rows failed, `max_failed_share` allows "
            f"{self._max_share:.1%} ({most})",
            hint="the good replies are kept: mend the cause and run the same command again, with "
            "`--retry-failed` if the server refused them; or raise `[study] max_failed_share`",
        )
