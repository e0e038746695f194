"""Reading a file of published numbers, see `core/references.py`."""

from pathlib import Path

import polars as pl

from mbt_cli.core.references import METRIC, VALUE
from mbt_cli.errors import UsageError

_HINT = "the first line names the columns: axes such as benchmark and model, then metric, value"


def read_reference(path: Path) -> pl.DataFrame:
    """A reference file: axes and `metric` as text, `value` as a number.

    Raises:
        UsageError: The file is not there, is no CSV, or lacks a column; or a value is no number.
    """
    try:
        frame = pl.read_csv(path, infer_schema=False, comment_prefix="#")
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UsageError(f"cannot read the reference `{path}`: {reason}", hint=_HINT) from error
    missing = [name for name in (METRIC, VALUE) if name not in frame.columns]
    if missing:
        raise UsageError(f"the reference `{path}` has no column `{missing[0]}`", hint=_HINT)
    numbers = frame[VALUE].str.strip_chars().cast(pl.Float64, strict=False)
    for line, (text, number) in enumerate(zip(frame[VALUE], numbers, strict=True), start=1):
        if number is None:
            raise UsageError(f"`{path}`, row {line}: `{text}` is no number", hint=_HINT)
    return frame.with_columns(numbers.alias(VALUE))
