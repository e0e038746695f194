"""One split of a benchmark, read as a questions cell reads it."""

from dataclasses import dataclass

import polars as pl

from mbt_cli.store.hub import HubAccess
from mbt_cli.store.questions import SplitReader


@dataclass(frozen=True)
class SplitRead:
    """All frames in one, and what the reader tells beside them."""

    frame: pl.DataFrame
    bad_rows: tuple[str, ...]
    files: dict[str, str]
    revision: str | None


def read_split(benchmark, split="validation", hub=None):
    reader = SplitReader(
        benchmark,
        split,
        question=benchmark.question,
        generate=benchmark.generate,
        has=benchmark.has,
        hub=hub or HubAccess(),
    )
    frame = pl.concat(reader.frames())
    return SplitRead(frame, tuple(reader.bad_rows), reader.files, reader.revision)
