"""`mbt train --show-sample`: rows of a training set, with the trained tokens highlighted."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import printer
from mbt_cli.cli.run import CommandOptions
from mbt_cli.core.number_text import counted
from mbt_cli.core.training_job import TRAINING_SET
from mbt_cli.engine.select import select
from mbt_cli.errors import MissingInputError
from mbt_cli.store.cells import cell_folder


def show_training_samples(path: Path, options: CommandOptions) -> None:
    """Print one row of each selected training set.

    Raises:
        MissingInputError: No training set exists yet.
    """
    manifest, machine = open_manifest(path, options.overrides, options.presets)
    chosen = select(manifest, kind="train", only=options.only or ())
    trainings = [address for address in chosen if manifest.cells[address].kind == "train"]
    folders = [cell_folder(machine.runs, manifest.study, address) for address in trainings]
    views = [view for folder in folders if (view := sample_view(folder)) is not None]
    if not views:
        raise MissingInputError(
            f"`{folders[0]}` has no training set yet",
            hint="`mbt train MANIFEST` writes it before the first step; try again then",
        )
    out = printer()
    for view in views:
        out.print(view)


def sample_view(folder: Path, *, rows: int = 1) -> RenderableType | None:
    """The first rows of a training set, with prompts dimmed and trained tokens highlighted.

    None until the training writes the set, before its first step.

    Args:
        folder: The cell's folder.
        rows: How many rows to show.
    """
    places = [folder / "files" / TRAINING_SET]
    places += sorted((folder / "journal" / "training").glob(f"*/{TRAINING_SET}"))
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        return None
    every = pl.scan_parquet(found)  # gigabytes of texts
    kept = every.filter(pl.col("dropped").is_null())
    return Group(*_parts(kept.head(rows).collect()), _counts(folder, every, kept))


def _parts(shown: pl.DataFrame) -> Iterator[Text]:
    for row in shown.iter_rows(named=True):
        yield Text(f"question {row['question_id']}, sample {row['sample']}", style="bold")
        text = Text(row["prompt"], style="dim")
        if row["completion"] is not None:  # GRPO samples its own
            # marks for pipes, which have no colours
            text.append("[trained:] ", style="bold green")
            text.append(row["completion"], style="green")
            text.append(" [:trained]", style="bold green")
        yield text


def _counts(folder: Path, every: pl.LazyFrame, kept: pl.LazyFrame) -> Text:
    total = every.select(pl.len()).collect().item()
    sums = kept.select(pl.len(), pl.col("trained_tokens").sum(), pl.col("tokens").sum()).collect()
    count, trained, tokens = sums.row(0)
    rows = f"{count:,} of {counted(total, 'row')}"
    return Text(f"{folder}: {rows}, {trained:,} trained tokens of {tokens:,}")
