"""`mbt status`: what the cells of submitted studies are doing."""

from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_study
from mbt_cli.commands.options import AsJson


def status(
    study: Annotated[
        str | None,
        typer.Argument(
            help="A study's name or manifest; left out, all that were submitted.",
            autocompletion=complete_study,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every few seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which cells are done, running, waiting or failed, and why."""
    from mbt_cli.commands.opening import study_named
    from mbt_cli.commands.status_view import print_status, watch_status
    from mbt_cli.errors import UsageError
    from mbt_cli.planning.status import status_json, study_status
    from mbt_cli.planning.submissions import studies_with_submissions
    from mbt_cli.settings import read_machine

    machine = read_machine()
    studies = [study_named(study)] if study else studies_with_submissions(machine.runs)
    if not studies:
        raise UsageError(
            f"nothing was submitted from `{machine.runs}`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    if watch:
        watch_status(machine.runs, studies)
        return
    for name in studies:
        found = study_status(machine.runs, name)
        if as_json:
            typer.echo(status_json(found), nl=False)
        else:
            print_status(found)
