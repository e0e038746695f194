"""`mbt run` and the verbs that run the stages of one kind."""

from collections.abc import Callable, Mapping

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
    ShardOf,
    Verbose,
)

VERBS: Mapping[str, str] = {
    "rollout": "Ask models every question.",
    "synthesize": "Have a teacher write solutions and traces.",
    "rewrite": "Have a teacher rewrite students' traces.",
    "judge": "Ask a judge model for a verdict on every rollout.",
    "score": "Compute metrics with intervals and paired differences.",
}


def run(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    dry_run: DryRun = False,
    replace: Replace = False,
    retry_failed: RetryFailed = False,
    shard: ShardOf = None,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage in order, on this machine; what is done is not done again."""
    from mbt_cli.commands.running import Told, run_cells, shard_of

    part = shard_of(shard)
    told = Told(
        *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose, part),
        as_json=as_json,
    )
    run_cells(manifest, None, told)


def stage_verb(kind: str) -> Callable[..., None]:
    """The command that runs the stages of one kind."""

    def verb(
        manifest: ManifestPath,
        only: Only = None,
        overrides: Set = None,
        dry_run: DryRun = False,
        replace: Replace = False,
        retry_failed: RetryFailed = False,
        presets: Presets = None,
        quiet: Quiet = False,
        verbose: Verbose = False,
        as_json: AsJson = False,
    ) -> None:
        from mbt_cli.commands.running import Told, run_cells

        told = Told(
            *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose),
            as_json=as_json,
        )
        run_cells(manifest, kind, told)

    return verb
