"""`mbt serve`: a model preset's server by hand."""

import signal
import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_model_preset
from mbt_cli.commands.options import Presets

_NOTHING_LEFT = "no process of the server is left"

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key of the model, as in `serve.max_model_len=4096`.",
        metavar="KEY=VALUE",
    ),
]


def serve(
    preset: Annotated[
        str,
        typer.Argument(
            help="Name of a file in presets/models/.", autocompletion=complete_model_preset
        ),
    ],
    overrides: Overrides = None,
    port: Annotated[
        int | None, typer.Option(help="Left out, a free one is found.", min=1, max=65535)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show what the server prints.")
    ] = False,
    presets: Presets = None,
) -> None:
    """Start a model preset's server, print its endpoint, and keep it until Ctrl-C."""
    from mbt_cli.commands.serve_view import how_to_ask
    from mbt_cli.commands.signals import raising_stopped
    from mbt_cli.machine import serving
    from mbt_cli.manifest.presets import PresetFolders
    from mbt_cli.settings import read_machine

    machine = read_machine()
    folders = PresetFolders.usual(extra=presets or machine.presets, config=machine.config)
    model = serving.preset_model(preset, overrides or (), folders)
    key = serving.chosen_key(machine.environment, is_shown=serving.can_show_key())
    place = serving.serving_place(machine, model, port, key)
    follow = serving.following(place.log, sys.stderr) if verbose else nullcontext()
    with raising_stopped(signal.SIGTERM, left=_NOTHING_LEFT):
        typer.echo(f"starting {preset} ({model.backend.kind}); its log: {place.log}", err=True)
        with follow, serving.served(model, place) as endpoint:
            typer.echo(f"base_url: {endpoint.base_url}\nmodel: {endpoint.model}")
            typer.echo(how_to_ask(endpoint, shows_key=key is None), err=True)
            serving.wait_for_end(endpoint)
    typer.echo(f"stopped; {_NOTHING_LEFT}", err=True)
