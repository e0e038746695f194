"""`mbt report`: make tables, figures and the page, or tell what is behind one number."""

from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_table
from mbt_cli.commands.options import (
    AsJson,
    DryRun,
    ManifestPath,
    Only,
    Presets,
    Quiet,
    Replace,
    Set,
    Verbose,
)

Trace = Annotated[
    tuple[str, str, str] | None,
    typer.Option(
        metavar="TABLE ROW COLUMN",
        autocompletion=complete_table,
        help="Tell what is behind a number of a finished report: its cell, lineage and raw "
        "rows. ROW is a number from 1, or labels of the row with / between them.",
    ),
]


def report(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    dry_run: DryRun = False,
    replace: Replace = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    trace: Trace = None,
) -> None:
    """Make the paper's tables and figures, and a page to read them and the traces on."""
    if trace is None:
        from mbt_cli.commands.running import Told, run_cells

        told = Told(
            *(only, overrides, dry_run, replace, False, presets, quiet, verbose), as_json=as_json
        )
        run_cells(manifest, "report", told)
        return
    from mbt_cli.commands.number_view import number_views
    from mbt_cli.commands.opening import open_manifest
    from mbt_cli.commands.printing import printer
    from mbt_cli.planning.select import select
    from mbt_cli.store.cells import cell_folder

    found, machine = open_manifest(manifest, overrides, presets)
    folders = [
        cell_folder(machine.runs, found.study, address)
        for address in select(found, kind="report", only=only or ())
    ]
    out = printer()
    for view in number_views(folders, machine.runs / found.study, *trace):
        out.print(view)
