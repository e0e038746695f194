"""A train cell whose checkpoint somebody else trained: a folder, or a repository of the hub."""

import shutil
from pathlib import Path

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.cell_notes import TRAINING
from mbt_cli.core.training_job import CHECKPOINT
from mbt_cli.errors import StageError
from mbt_cli.stages.work import Work
from mbt_cli.store.disk import writing_to
from mbt_cli.store.hub import HubRequest, fetch_files

_HUB = "hub:"


def take_over(work: Work) -> pl.DataFrame:
    """Copy the source's files into the artifact; the log is empty.

    Raises:
        StageError: The source is no model folder.
        MissingInputError: The hub does not have it, or a login is missing.
        ArtifactError: The disk refuses.
    """
    source = str(work.resolution.source)
    commit = None
    if source.startswith(_HUB):
        repo, _, revision = source.removeprefix(_HUB).partition("@")
        request = HubRequest(
            repo, ("*",), revision or "main", type="model", skip=("*.md", ".git*", "*.pth")
        )
        found = fetch_files(request, work.hub)
        folder, commit = found.folder, found.commit
    else:
        folder = Path(source).expanduser()
    if not (folder / "config.json").is_file():
        raise StageError(
            f"`{folder}` is no model folder: it has no config.json",
            hint="name the folder that `save_pretrained` wrote, an adapter merged into its model",
        )
    with writing_to(work.files):
        shutil.copytree(folder, work.files / CHECKPOINT)
    work.outcome.notes[TRAINING] = {"method": "external", "from": source, "revision": commit}
    return pl.DataFrame(schema=rows.TRAINING_LOG)
