"""`mbt check`: is the manifest right, and what does it expand to?"""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_manifest
from mbt_cli.commands.options import AsJson, Presets, Set


def check(
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Manifests to check.", show_default=False, autocompletion=complete_manifest
        ),
    ] = None,
    overrides: Set = None,
    presets: Presets = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of manifests instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check manifests and count their cells, without running anything."""
    from mbt_cli.commands.json_views import checked_json
    from mbt_cli.commands.opening import open_manifest
    from mbt_cli.commands.printing import printer
    from mbt_cli.commands.views import stage_counts
    from mbt_cli.errors import UsageError
    from mbt_cli.machine.needs import notes
    from mbt_cli.manifest.json_schema import schema_text

    if schema:
        typer.echo(schema_text())
        return
    if not manifests:
        raise UsageError("no manifest named", hint="mbt check manifests/quickstart.toml")
    for path in manifests:
        manifest, machine = open_manifest(path, overrides, presets)
        if as_json:
            typer.echo(checked_json(manifest))
        else:
            printer().print(stage_counts(manifest, notes(manifest, machine.environment)))
