"""`mbt export`: a stage's rows as a data set for others."""

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
    """Write a stage as Parquet shards with a data card, into a folder or to the hub."""
    from rich.console import Console

    from mbt_cli.commands.lineage_view import cells_below
    from mbt_cli.planning.exporting import card_of, parts_of
    from mbt_cli.planning.exporting import export as write_out
    from mbt_cli.settings import read_machine
    from mbt_cli.stages.runner import hub_access

    parts = parts_of(cells_below(stage))
    out = Console(highlight=False, soft_wrap=True, markup=False)
    if not write:
        out.print(card_of(parts))
        seen = "for all to see" if public else "private"
        out.print(f"nothing is written: `--write` writes this to {to} ({seen} if it is new)")
        return
    where = write_out(parts, to, hub_access(read_machine()), private=not public)
    out.print(f"written: {where}")
