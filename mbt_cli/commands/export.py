"""`mbt export`: a stage's rows, or a checkpoint, for others."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_cell_folder


def export(
    stage: Annotated[
        Path,
        typer.Argument(
            help="Folder of a stage or cell: runs/STUDY/STAGE.", autocompletion=complete_cell_folder
        ),
    ],
    to: Annotated[str, typer.Option(help="hub:ORG/NAME, or a new folder.", show_default=False)],
    write: Annotated[
        bool, typer.Option("--write", help="Do it; left out, only tell what would be written.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository for all to see.")
    ] = False,
) -> None:
    """Write a stage as Parquet shards with a data card, into a folder or to the hub.

    A train cell becomes a model repository: its checkpoint, adapters merged, with a model card.
    """
    from mbt_cli.commands.lineage_view import cells_below
    from mbt_cli.planning.exporting import card_of, parts_of, refused
    from mbt_cli.planning.exporting import export as write_out
    from mbt_cli.planning.exporting_model import card_of_model, export_model
    from mbt_cli.settings import read_machine
    from mbt_cli.stages.runner import hub_access
    from mbt_cli.store.reading import require_lineage

    cells = cells_below(stage)
    is_model = len(cells) == 1 and require_lineage(cells[0]).kind == "train"
    parts = [] if is_model else parts_of(cells)
    access = hub_access(read_machine())
    if not write:
        seen = "for all to see" if public else "private"
        typer.echo(card_of_model(cells[0]) if is_model else card_of(parts))
        typer.echo(f"nothing is written: `--write` writes this to {to} ({seen} if it is new)")
        if refusal := refused(to, access):
            typer.echo(f"`--write` would be refused: {refusal}", err=True)
        return
    if is_model:
        where = export_model(cells[0], to, access, private=not public)
    else:
        where = write_out(parts, to, access, private=not public)
    typer.echo(f"written: {where}")
