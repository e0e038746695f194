"""`mbt show`: what made an artifact, back to the questions."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_study_path


def show(
    path: Annotated[
        Path,
        typer.Argument(
            help="Folder of a cell or of a stage; or a manifest: how its models are served.",
            autocompletion=complete_study_path,
        ),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare it with the lineage.")
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Show what was sent for a question, and the reply.", metavar="QUESTION_ID"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lineage as JSON.")] = False,
) -> None:
    """Show what made an artifact: model, prompt, data and code, back to the questions."""
    from rich.console import Console

    from mbt_cli.commands.lineage_view import cells_below, lineage_json_of, lineage_view, verified
    from mbt_cli.commands.prompt_view import prompt_view
    from mbt_cli.commands.served_view import served_view

    out = Console(highlight=False)
    if path.suffix == ".toml":
        out.print(served_view(path))
        return
    for folder in cells_below(path):
        if prompt is not None:
            out.print(prompt_view(folder, prompt))
            continue
        if as_json:
            typer.echo(lineage_json_of(folder))
            continue
        out.print(lineage_view(folder))
        if verify:
            out.print(verified(folder))
