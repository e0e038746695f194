"""A train cell whose checkpoint somebody else trained: a folder that stands in for the training."""

import shutil
from pathlib import Path

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.cell_notes import TRAINING
from mbt_cli.core.training_job import CHECKPOINT
from mbt_cli.errors import StageError
from mbt_cli.stages.work import Work
from mbt_cli.store.disk import writing_to

_HUB = "hub:"


def take_over(work: Work) -> pl.DataFrame:
    """Copy the source's folder into the artifact; the log is empty.

    Raises:
        StageError: The source is on the hub, which this version cannot fetch, or no model folder.
        ArtifactError: The disk refuses.
    """
    source = str(work.resolution.source)
    if source.startswith(_HUB):
        raise StageError(
            f"`{work.resolution.address}`: this version of mbt cannot fetch a checkpoint from "
            f"`{source}`",
            hint="download the repository once, and name its folder as the `source`",
        )
    folder = Path(source).expanduser()
    if not (folder / "config.json").is_file():
        raise StageError(
            f"`{folder}` is no model folder: it has no config.json",
            hint="name the folder that `save_pretrained` wrote, an adapter merged into its model",
        )
    with writing_to(work.files):
        shutil.copytree(folder, work.files / CHECKPOINT)
    work.outcome.notes[TRAINING] = {"method": "external", "from": source}
    return pl.DataFrame(schema=rows.TRAINING_LOG)
