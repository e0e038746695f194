"""A user's own difficulty tiers: a file with the columns question_id and tier."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mbt_cli.errors import UsageError

_TIERS = ("easy", "medium", "hard")
_COLUMNS = ("question_id", "tier")


def read_tiers(paths: Sequence[Path]) -> pl.DataFrame:
    """Columns question_id and tier of CSV, JSON lines or Parquet files, of one at least.

    Raises:
        UsageError: Another kind of file, a missing column, an unknown tier, or an id given twice.
    """
    tiers = pl.concat([_read_tiers(path) for path in paths])
    twice = tiers.filter(pl.col("question_id").is_duplicated())
    if not twice.is_empty():
        named = " and ".join(f"`{path}`" for path in paths)
        raise UsageError(f"{named}: question `{twice['question_id'][0]}` is there twice")
    return tiers


def _read_tiers(path: Path) -> pl.DataFrame:
    tiers = _read(path)
    if missing := [name for name in _COLUMNS if name not in tiers.columns]:
        raise UsageError(
            f"`{path}` has no column `{missing[0]}`", hint="it needs question_id, tier"
        )
    tiers = tiers.select(pl.col(name).cast(pl.String) for name in _COLUMNS)
    unknown = tiers.filter(~pl.col("tier").is_in(_TIERS))
    if not unknown.is_empty():
        found = unknown["tier"][0]
        raise UsageError(f"`{path}` holds the tier `{found}`; tiers are {', '.join(_TIERS)}")
    return tiers


def _read(path: Path) -> pl.DataFrame:
    try:
        match path.suffix:
            case ".csv":
                return pl.read_csv(path, infer_schema=False)
            case ".jsonl":
                return pl.read_ndjson(path)
            case ".parquet":
                return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}") from error
    raise UsageError(f"`{path}` ends in `{path.suffix}`; tiers come in .csv, .jsonl or .parquet")
