"""`mbt submit`: hand a plan's jobs to Slurm or to this machine."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_cluster
from mbt_cli.commands.options import Presets


def submit(
    plan: Annotated[
        Path | None, typer.Argument(help="A plan; left out, stdin.", show_default=False)
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Hand the jobs to sbatch.")] = False,
    local: Annotated[
        int | None,
        typer.Option("--local", min=1, help="Run them on this machine, N at once.", metavar="N"),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="Cluster: a file in presets/slurm/.", autocompletion=complete_cluster),
    ] = "paper",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each script; submit nothing.")
    ] = False,
    script_dir: Annotated[
        Path | None,
        typer.Option(
            help="Write the scripts and their copy of the manifest there; submit nothing."
        ),
    ] = None,
    presets: Presets = None,
) -> None:
    """Submit the jobs of a plan: `mbt plan MANIFEST | mbt submit --slurm`."""
    from mbt_cli.commands.submitting import Told, submit_plan
    from mbt_cli.errors import UsageError

    if slurm == (local is not None):
        raise UsageError(
            "say one place to run: `--slurm` or `--local N`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    stream = typer.get_text_stream("stdin")
    if plan is None and stream.isatty():
        raise UsageError("no plan on stdin", hint="mbt plan MANIFEST | mbt submit --slurm")
    where = "stdin" if plan is None else f"`{plan}`"
    if plan is not None and not plan.is_file():
        raise UsageError(f"no file `{plan}`", hint="mbt plan MANIFEST --json > plan.json")
    text = stream.read() if plan is None else plan.read_text(encoding="utf-8")
    submit_plan(text, where, Told(local, preset, dry_run, script_dir, presets))
