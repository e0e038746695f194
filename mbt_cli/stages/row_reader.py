"""Rows of an artifact by their number, a batch at a time, so that memory stays bounded."""

import polars as pl

_SPREAD = 4
"""How many times more rows than wanted may be read in one piece."""


class RowReader:
    """Reads chosen rows of a frame that is too large to hold.

    Args:
        frame: Lazy rows, of one Parquet file or several.
    """

    def __init__(self, frame: pl.LazyFrame) -> None:
        self._frame = frame

    def take(self, numbers: pl.Series) -> pl.DataFrame:
        """Rows by number from 0, in the order asked for; a number may stand several times."""
        low, high = numbers.min(), numbers.max()
        if not isinstance(low, int) or not isinstance(high, int):
            return self._frame.limit(0).collect()
        if high - low < _SPREAD * len(numbers):
            return self._frame.slice(low, high - low + 1).collect()[numbers - low]
        # scattered: one pass over all of it
        wanted = numbers.alias("number").unique().to_frame().cast(pl.get_index_type())
        found = self._frame.with_row_index("number").join(wanted.lazy(), on="number", how="semi")
        asked = pl.DataFrame({"number": numbers}).cast(pl.get_index_type())
        part = found.collect(engine="streaming")
        return asked.join(part, on="number", how="left", maintain_order="left").drop("number")
