"""`mbt show`: what made an artifact, back to the questions."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_study_path
from mbt_cli.commands.options import AsJson

_SHOWN_WHOLE = 2
"""Cells that are shown with all that made them; of more, a line each."""

StudyPath = Annotated[
    Path,
    typer.Argument(
        help="Folder of a cell or of a stage; or a manifest: how its models are served.",
        autocompletion=complete_study_path,
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read every byte and compare it with the lineage.")
]
Prompt = Annotated[
    str | None,
    typer.Option(help="Show what was sent for a question, and the reply.", metavar="QUESTION_ID"),
]


def show(
    path: StudyPath,
    verify: Verify = False,
    prompt: Prompt = None,
    as_json: AsJson = False,
) -> None:
    """Show what made an artifact: model, prompt, data and code, back to the questions."""
    from mbt_cli.commands.lineage_view import (
        cells_below,
        cells_view,
        lineage_json_of,
        lineage_view,
        verified,
    )
    from mbt_cli.commands.printing import printer
    from mbt_cli.commands.prompt_view import prompt_view
    from mbt_cli.commands.served_view import served_json, served_view
    from mbt_cli.manifest.presets import manifest_file

    out = printer()
    if path.suffix == ".toml" or manifest_file(path) != path:
        if as_json:
            typer.echo(served_json(path))
        else:
            out.print(served_view(path))
        return
    folders = cells_below(path)
    if len(folders) > _SHOWN_WHOLE and not (as_json or verify or prompt):
        out.print(cells_view(folders))
        return
    if as_json and prompt is None:
        told = [lineage_json_of(folder) for folder in folders]
        typer.echo(told[0] if folders == [path] else f"[{','.join(told)}]")
        return
    for folder in folders:
        if prompt is not None:
            out.print(prompt_view(folder, prompt))
            continue
        out.print(lineage_view(folder))
        if verify:
            out.print(verified(folder))
