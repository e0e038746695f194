"""Whether a gold answer occurs in a trace, without a judge, over whole frames."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from mbt_cli.core.answer_frames import normalised
from mbt_cli.core.samples import Values
from mbt_cli.core.traces import trace_column

_ROWS_AT_ONCE = 2_000  # traces are long; this bounds memory


@dataclass(frozen=True, slots=True)
class TraceHits:
    """1 where a reference occurs in the trace, else 0; shape (rows,).

    Args:
        substring: As a run of characters of the normalised trace, the paper's way: `no` is found
            in `norway`, and a reference that normalises to nothing is found in every trace that
            has any text.
        words: As whole words, side by side and in order.
    """

    substring: Values
    words: Values


def trace_hits(rollouts: pl.DataFrame) -> TraceHits:
    """Look for gold answer and aliases in each rollout's trace.

    Args:
        rollouts: `reasoning`, `reply`, `gold_answer`, `gold_aliases`.
    """
    slices = [_hits(piece) for piece in rollouts.iter_slices(_ROWS_AT_ONCE)]
    found = pl.concat(slices) if slices else _hits(rollouts)
    return TraceHits(found["substring"].to_numpy(), found["words"].to_numpy())


def _hits(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Columns `substring` and `words` (0 or 1), rows in the order of the input."""
    references = pl.concat_list(pl.col("gold_answer").fill_null(""), pl.col("gold_aliases"))
    fallback = pl.concat_list(pl.col("gold_answer").fill_null(""))
    rows = rollouts.select(
        trace_column(), reference=pl.coalesce(references, fallback).list.drop_nulls()
    ).with_row_index("row")
    rows = rows.with_columns(trace=normalised(rows["trace"]))
    pairs = rows.explode("reference")
    pairs = pairs.with_columns(reference=normalised(pairs["reference"]))
    trace, wanted = pl.col("trace"), pl.col("reference")
    padded = pl.concat_str(pl.lit(" "), trace, pl.lit(" "))
    word = pl.concat_str(pl.lit(" "), wanted, pl.lit(" "))
    hits = pairs.select(
        "row",
        substring=(trace != "") & trace.str.contains(wanted, literal=True),
        words=(wanted != "") & padded.str.contains(word, literal=True),
    )
    best = hits.group_by("row", maintain_order=True).agg(
        pl.col("substring", "words").max().cast(pl.Float64)
    )
    return best.select(pl.col("substring", "words").fill_null(np.nan))
