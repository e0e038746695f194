"""Rows as frames."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import polars as pl
import pyarrow as pa


def frame_of_rows(rows: Sequence[Mapping[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    """Rows of one schema as a frame; what a row does not say is null.

    By way of Arrow: for messages and documents (lists of structs), that takes a third of the
    time that Polars' own constructor needs.

    Raises:
        pyarrow.ArrowException: A value is not of its column's type.

    Example:
        >>> frame_of_rows([{"n": 1}, {}], pl.Schema({"n": pl.Int64()})).to_series().to_list()
        [1, None]
    """
    table = pa.Table.from_pylist(list(rows), schema=_arrow_schema(tuple(schema.items())))
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


@lru_cache(maxsize=64)
def _arrow_schema(columns: tuple[tuple[str, pl.DataType], ...]) -> pa.Schema:
    empty = pl.DataFrame(schema=dict(columns))
    return empty.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
