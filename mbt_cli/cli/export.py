"""`mbt export`: a stage as a data set, or a training as a model repository."""

from pathlib import Path

import typer

from mbt_cli.cli.show import cells_below
from mbt_cli.engine import export as exports
from mbt_cli.engine.runner import hub_access
from mbt_cli.settings import read_machine


def export(stage: Path, to: str, *, write: bool, public: bool) -> None:
    """Write the cells below a folder, or only show the card that would be written.

    Args:
        stage: Folder of a stage or of a cell.
        to: `hub:ORG/NAME`, or a new folder.
        write: Write; without it nothing is written.
        public: Make a new repository public.
    """
    found = exports.export_of(cells_below(stage))
    access = hub_access(read_machine())
    if not write:
        visibility = "public" if public else "private"
        typer.echo(found.card)
        typer.echo(f"nothing is written: `--write` writes this to {to} ({visibility} if it is new)")
        if refusal := exports.refusal(to, access):
            typer.echo(f"`--write` would be refused: {refusal}", err=True)
        return
    typer.echo(f"written: {exports.publish(found, to, access, private=not public)}")
