"""`mbt doctor`: is this machine ready, and for this study?"""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_manifest
from mbt_cli.commands.options import AsJson, Presets, Set


def doctor(
    manifest: Annotated[
        Path | None,
        typer.Argument(
            help="A study to look at too.", show_default=False, autocompletion=complete_manifest
        ),
    ] = None,
    replies: Annotated[
        bool, typer.Option("--replies", help="Start servers that take long, too, and ask them.")
    ] = False,
    stop_orphans: Annotated[
        bool, typer.Option("--stop-orphans", help="End servers that mbt left behind, only that.")
    ] = False,
    as_json: AsJson = False,
    overrides: Set = None,
    presets: Presets = None,
) -> None:
    """Look at this machine, and at what a study needs beside what is here: a line each."""
    from mbt_cli.commands.doctor_view import findings_json, looking, print_findings, stopped_words
    from mbt_cli.commands.opening import open_manifest
    from mbt_cli.machine.doctor import machine_findings, manifest_findings, opened
    from mbt_cli.machine.orphans import stop_orphans as stop_all
    from mbt_cli.settings import read_machine

    if stop_orphans:
        typer.echo(stopped_words(stop_all()))
        return
    machine = read_machine()
    study, problems = opened(manifest, lambda path: open_manifest(path, overrides, presets)[0])
    with looking() as look:
        found = [*look(machine_findings(machine, study)), *problems]
        if study is not None:
            found += look(manifest_findings(study, machine, starts_servers=replies))
    if as_json:
        typer.echo(findings_json(found))
    else:
        print_findings(found)
    if any(finding.state == "broken" for finding in found):
        raise typer.Exit(1)
