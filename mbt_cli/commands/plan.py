"""`mbt plan`: what is to be done, as a table for people and as one document for a pipe."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_manifest
from mbt_cli.commands.options import AsJson, Only, Presets, Replace, Set

AnyManifest = Annotated[
    Path | None,
    typer.Argument(
        help="The study's manifest.", show_default=False, autocompletion=complete_manifest
    ),
]
MaxCells = Annotated[int, typer.Option(min=1, help="Cells a job may hold.")]
MaxHours = Annotated[float, typer.Option(min=0.1, help="Hours a job may take, by the estimate.")]
MaxRows = Annotated[
    int, typer.Option(min=1, help="Rows of a cell above which it is split into an array.")
]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of plans instead.")]


def plan(
    manifest: AnyManifest = None,
    only: Only = None,
    overrides: Set = None,
    as_json: AsJson = False,
    replace: Replace = False,
    max_cells: MaxCells = 24,
    max_hours: MaxHours = 12.0,
    max_rows: MaxRows = 100_000,
    presets: Presets = None,
    schema: Schema = False,
) -> None:
    """Show what is left to do, job by job: a table, or JSON in a pipe for `mbt submit`.

    `--only` plans those cells and what they need that is not made yet.
    """
    from mbt_cli.commands.opening import open_manifest
    from mbt_cli.commands.plan_view import print_plan
    from mbt_cli.errors import UsageError
    from mbt_cli.planning.jobs import Limits
    from mbt_cli.planning.plan_document import PlanOptions, make_plan, plan_json, plan_schema
    from mbt_cli.planning.states import States

    if schema:
        typer.echo(plan_schema(), nl=False)
        return
    if manifest is None:
        raise UsageError("no manifest named", hint="mbt plan manifests/paper.toml")
    opened, machine = open_manifest(manifest, overrides, presets)
    options = PlanOptions(
        Limits(max_cells, max_hours, max_rows), only or (), overrides or (), presets, replace
    )
    made = make_plan(opened, States(opened, machine.runs), options)
    if as_json or not typer.get_text_stream("stdout").isatty():
        typer.echo(plan_json(made), nl=False)
    else:
        print_plan(made)
