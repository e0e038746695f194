"""The page of several studies: state, models and main results of each, linked to its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mbt_cli.core.tables import TableData
from mbt_cli.report.page import copy_assets, page_table, write_script
from mbt_cli.store.disk import writing_to

ASSETS = {
    "studies.html": "index.html",
    **{name: name for name in ("style.css", "base.js", "tables.js", "studies.js")},
}


@dataclass(frozen=True, slots=True)
class ListedStudy:
    """A study of the list.

    Args:
        name: Its name.
        cells: What cells do (`done`, `running`, `failed`, ...) to their number.
        link: Where its page is, relative to the list; None if it has none.
        made: Time of its newest report, UTC, as text.
        models: The models of its main results.
        table: Its main results, or another first table.
        problem: Why something of it cannot be read.
    """

    name: str
    cells: Mapping[str, int]
    link: str | None = None
    made: str = ""
    models: Sequence[str] = ()
    table: TableData | None = None
    problem: str = ""


def write_studies(folder: Path, title: str, studies: Sequence[ListedStudy]) -> Path:
    """Write the page of several studies.

    Args:
        folder: Folder of the page.
        title: What the studies have in common, such as their folder.
        studies: The studies, as they are listed.

    Returns:
        Path of index.html.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    with writing_to(folder):
        copy_assets(folder, ASSETS)
    listed = [
        {
            "name": study.name,
            "cells": dict(study.cells),
            "link": study.link,
            "made": study.made,
            "models": list(study.models),
            "table": None if study.table is None else page_table(study.table),
            "problem": study.problem,
        }
        for study in studies
    ]
    write_script(folder, "studies", {"title": title, "studies": listed})
    return folder / "index.html"
