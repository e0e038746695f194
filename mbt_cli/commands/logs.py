"""`mbt logs`: what the job of a cell has written."""

import time
from pathlib import Path
from typing import Annotated

import typer

_LOOK_SECONDS = 0.5
_PIECE_BYTES = 65_536


def logs(
    cell: Annotated[str, typer.Argument(help="STAGE/axis=GLOB..., or the id of a job.")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on printing what is written.")
    ] = False,
    study: Annotated[str | None, typer.Option(help="Name of the study, if there are more.")] = None,
) -> None:
    """Print the newest log of a submitted cell."""
    from mbt_cli.planning.status import log_file
    from mbt_cli.settings import read_machine

    path = log_file(read_machine().runs, study, cell)
    typer.echo(f"==> {path}", err=True)
    place = _print_from(path, 0)
    while follow:
        time.sleep(_LOOK_SECONDS)
        place = _print_from(path, place)


def _print_from(path: Path, place: int) -> int:
    with path.open("rb") as file:
        file.seek(place)
        while piece := file.read(_PIECE_BYTES):
            typer.echo(piece.decode(errors="replace"), nl=False)
        return file.tell()
