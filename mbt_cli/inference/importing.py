"""Replies of an earlier artifact put into a journal, so that equal requests find them."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.chat import Reply
from mbt_cli.errors import ArtifactError
from mbt_cli.inference.journal import record_of

_BATCH_ROWS = 5_000
_WANTED = [name for name in rows.REPLY if name != "messages"]


def import_rows(rows_parquet: Path, journal: Path) -> int:
    """Write the replies of an artifact into the journal, streaming.

    Doing it again replaces the first import. Rows without a request key (known by definition,
    never asked) are left out.

    Args:
        rows_parquet: A rows file that has the columns of `rows.REPLY`.
        journal: The cell's journal folder; made when it is not there.

    Returns:
        How many replies and failures were written.

    Raises:
        ArtifactError: The file cannot be read or the journal cannot be written.
    """
    name = sha256(str(rows_parquet.absolute()).encode()).hexdigest()[:12]
    target = journal / f"imported-{name}.jsonl"
    partial = target.with_suffix(".partial")
    count = 0
    try:
        journal.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for row in _rows(rows_parquet):
                file.write(_record(row))
                count += 1
        partial.replace(target)
    except (OSError, pl.exceptions.PolarsError) as error:
        partial.unlink(missing_ok=True)
        raise ArtifactError(
            f"cannot take over the replies of `{rows_parquet}` into `{journal}`: {error}"
        ) from error
    return count


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    lazy = pl.scan_parquet(path).select(_WANTED)
    height = lazy.select(pl.len()).collect().item()
    for start in range(0, height, _BATCH_ROWS):
        batch = lazy.slice(start, _BATCH_ROWS).collect()
        keyed = batch.filter(pl.col("request_key").is_not_null())
        yield from keyed.iter_rows(named=True)


def _record(row: dict[str, Any]) -> bytes:
    key = row.pop("request_key")
    text = row.pop("reply")
    if (row["failure"] or "").startswith(rows.GATE):
        row["failure"] = None  # the trace failed a gate, the reply is good
    return record_of(key, Reply(text=text, **row), None)
