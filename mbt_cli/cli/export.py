"""`mbt export`: a stage as a data set, or a training as a model repository."""

from pathlib import Path

import typer

from mbt_cli.cli.show import cells_below
from mbt_cli.engine import export as exports
from mbt_cli.engine.runner import hub_access
from mbt_cli.settings import read_machine
from mbt_cli.store.reading import require_lineage


def export(stage: Path, to: str, *, write: bool, public: bool) -> None:
    """Write the cells below a folder, or only show the card that would be written.

    Args:
        stage: Folder of a stage or of a cell.
        to: `hub:ORG/NAME`, or a new folder.
        write: Write; without it nothing is written.
        public: Make a new repository public.
    """
    cells = cells_below(stage)
    is_model = len(cells) == 1 and require_lineage(cells[0]).kind == "train"
    parts = [] if is_model else exports.parts_of(cells)
    access = hub_access(read_machine())
    if not write:
        visibility = "public" if public else "private"
        typer.echo(exports.card_of_model(cells[0]) if is_model else exports.card_of(parts))
        typer.echo(f"nothing is written: `--write` writes this to {to} ({visibility} if it is new)")
        if refusal := exports.refused(to, access):
            typer.echo(f"`--write` would be refused: {refusal}", err=True)
        return
    if is_model:
        where = exports.export_model(cells[0], to, access, private=not public)
    else:
        where = exports.export(parts, to, access, private=not public)
    typer.echo(f"written: {where}")
