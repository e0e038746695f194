"""`mbt view`: the report in a browser, or traces on the terminal."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_study_path


def view(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A manifest, a folder of a study, or a page; else the newest report.",
            autocompletion=complete_study_path,
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it on this machine until Ctrl-C, open nothing.")
    ] = False,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show traces here instead of the page.")
    ] = False,
    question: Annotated[
        str | None, typer.Option(help="With --terminal: this question only.", metavar="ID")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="With --terminal: traces of each rollout cell.")
    ] = 3,
) -> None:
    """Open the report of a study in a browser, or read its traces on the terminal."""
    if terminal:
        from mbt_cli.commands.trace_view import show_traces

        show_traces(path, question, limit)
        return
    from mbt_cli.commands.pages import find_page, open_page, serve_page

    page = find_page(path)
    if serve:
        serve_page(page)
    open_page(page)
