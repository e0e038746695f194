"""`mbt cancel`: take a study's jobs out of the queue."""

from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_study
from mbt_cli.commands.options import Only


def cancel(
    study: Annotated[
        str, typer.Argument(help="The study's name or manifest.", autocompletion=complete_study)
    ],
    only: Only = None,
) -> None:
    """Cancel a study's queued and running jobs; every reply that has arrived is kept."""
    from mbt_cli.commands.opening import study_named
    from mbt_cli.launchers.slurm_queue import cancel as cancel_jobs
    from mbt_cli.planning.status import jobs_to_cancel
    from mbt_cli.settings import read_machine

    jobs = jobs_to_cancel(read_machine().runs, study_named(study), only or ())
    if not jobs:
        typer.echo("nothing to cancel: no job of that is queued or running")
        return
    cancel_jobs(jobs)
    typer.echo(f"cancelled {len(jobs)} jobs: {', '.join(jobs)}")
