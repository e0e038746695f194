"""`mbt merge`: rows of cells whose requests were shared among shards."""

from mbt_cli.commands.options import (
    AsJson,
    ManifestPath,
    Only,
    Presets,
    Quiet,
    Replace,
    Set,
    Verbose,
)


def merge(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    replace: Replace = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Make the rows of cells whose shards have all run; asks nothing."""
    from mbt_cli.commands.opening import open_manifest
    from mbt_cli.commands.running import Told, run_cells
    from mbt_cli.planning.merging import refuse_unasked
    from mbt_cli.planning.select import select

    opened, machine = open_manifest(manifest, overrides, presets)
    refuse_unasked(opened, machine, select(opened, kind=None, only=only or ()))
    told = Told(only, overrides, False, replace, False, presets, quiet, verbose, as_json=as_json)
    run_cells(manifest, None, told)
