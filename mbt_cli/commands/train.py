"""`mbt train`: the train stages, and what exactly they train on."""

from typing import Annotated

import typer

from mbt_cli.commands.options import (
    AsJson,
    DryRun,
    ManifestPath,
    Only,
    Presets,
    Quiet,
    Replace,
    RetryFailed,
    Set,
    Verbose,
)

ShowSample = Annotated[
    bool,
    typer.Option(
        "--show-sample",
        help="Train nothing: show a row of each training set, trained tokens highlighted.",
    ),
]


def train(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    show_sample: ShowSample = False,
    dry_run: DryRun = False,
    replace: Replace = False,
    retry_failed: RetryFailed = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train models on rollouts, traces or rewards."""
    from mbt_cli.commands.running import Told, run_cells
    from mbt_cli.commands.sample_view import show_samples

    told = Told(
        *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose),
        as_json=as_json,
    )
    if show_sample:
        show_samples(manifest, told)
    else:
        run_cells(manifest, "train", told)
