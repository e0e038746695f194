"""`mbt view`: the report in a browser, or traces on the terminal."""

from pathlib import Path
from typing import Annotated

import typer


def view(
    path: Annotated[
        Path | None,
        typer.Argument(help="A manifest, a folder of a study, or a page; else the newest report."),
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
    import webbrowser

    from rich.console import Console
    from rich.text import Text

    from mbt_cli.commands.pages import address_of, find_page, page_server, study_path
    from mbt_cli.commands.trace_view import trace_views

    out = Console(highlight=False)
    if terminal:
        views = trace_views(study_path(path), question, limit)
        if out.is_terminal:
            with out.pager(styles=True):
                out.print(*views, sep="\n")
        else:
            out.print(*views, sep="\n")
        return
    page = find_page(path)
    if serve:
        with page_server(page) as server:
            out.print(Text(f"serving {page.parent}/ on {address_of(server)} (Ctrl-C ends it)"))
            server.serve_forever()
    uri = page.resolve().as_uri()
    opened = webbrowser.open(uri)
    out.print(Text(f"{'opened' if opened else 'open this in a browser:'} {uri}"), soft_wrap=True)
