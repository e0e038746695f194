"""`mbt data`: get what a study needs from elsewhere, and see what is here."""

from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_benchmark, complete_model
from mbt_cli.commands.options import AsJson, ManifestPath, Presets, Set
from mbt_cli.commands.root import Group

data = typer.Typer(
    cls=Group, no_args_is_help=True, help="Get models and data sets, and see what is here."
)


@data.command("fetch")
def fetch(
    manifest: ManifestPath,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this model, repeatable.", metavar="NAME", autocompletion=complete_model
        ),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this benchmark, repeatable.",
            metavar="NAME",
            autocompletion=complete_benchmark,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell sizes; fetch nothing.")] = False,
    overrides: Set = None,
    presets: Presets = None,
) -> None:
    """Get every model and data set that a manifest names into the local caches."""
    from mbt_cli.commands.data_views import needs_view
    from mbt_cli.commands.opening import open_manifest
    from mbt_cli.commands.printing import printer
    from mbt_cli.planning.fetching import fetch_all, missing_error, needed_by, stock_of

    found, machine = open_manifest(manifest, overrides, presets)
    needed = needed_by(found, machine, models=model or (), benchmarks=benchmark or ())
    out = printer()
    out.print(needs_view([(one, stock_of(one, machine)) for one in needed]))
    if dry_run:
        return
    results = []
    for result in fetch_all(needed, machine, lambda one: out.print(f"{one.name}: {one.what}")):
        results.append(result)
        out.print(f"  here: {result.path}" if result.error is None else "  could not be fetched")
    if error := missing_error(results):
        raise error


@data.command("ls")
def ls(as_json: AsJson = False) -> None:
    """Show the models and data sets that are on this machine."""
    from mbt_cli.commands.data_views import stock_json, stock_view
    from mbt_cli.commands.printing import printer
    from mbt_cli.settings import read_machine

    machine = read_machine()
    if as_json:
        typer.echo(stock_json(machine))
    else:
        printer().print(stock_view(machine))
