"""`mbt watch`: evaluate the checkpoints of a training while it runs."""

import os
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import printer
from mbt_cli.cli.run import CommandOptions, result_json
from mbt_cli.cli.screen import screen
from mbt_cli.cli.signals import stoppable
from mbt_cli.core.number_text import counted
from mbt_cli.engine.beside import BESIDE, VISIBLE
from mbt_cli.engine.mirroring import brought_down, mirroring
from mbt_cli.engine.run_records import recording
from mbt_cli.engine.runner import RunOptions
from mbt_cli.engine.watch import Watch, to_watch
from mbt_cli.errors import UsageError


def watch_study(
    path: Path, options: CommandOptions, *, gpus: str | None, until: int | None
) -> None:
    """Make the cells that read checkpoints as these appear, and print what was made.

    Raises:
        UsageError: The manifest reads no steps of a training or source, or a GPU is not a number.
        StageError: A training or a cell has failed; everything else is made.
    """
    if gpus is not None:
        if not all(one.strip() for one in gpus.split(",")):
            raise UsageError(f"`--gpus {gpus}` is not a list of GPUs", hint="such as `--gpus 6,7`")
        os.environ[VISIBLE] = gpus
    manifest, machine = open_manifest(path, options.overrides, options.presets)
    choose = partial(to_watch, only=options.only or ())
    if not manifest.has_steps:
        raise UsageError(
            f"`{path}` reads no checkpoints of steps, so there is nothing to watch",
            hint='a rollout reads them by `checkpoints = { stage = "grpo", where = { step = "all" '
            "} }`: mbt help evaluation",
        )
    say = partial(typer.echo, err=True)
    manifest = brought_down(manifest, machine, choose, say)
    choose(manifest)
    run_options = RunOptions(options.replace, options.retry_failed, no_cache=options.no_cache)
    watch = Watch(manifest, machine, run_options, choose, until, _runs_beside())
    with (
        mirroring(manifest, machine, say),
        recording(manifest, machine, watch, shlex.join(["mbt", *sys.argv[1:]])),
        stoppable(shlex.join(["mbt", "watch", str(path)])),
        screen(options.quiet, options.verbose) as progress,
    ):
        report = watch.run(progress)
    if options.as_json:
        typer.echo(result_json(watch.manifest, machine, report))
    elif not options.quiet:
        made, calls = counted(len(report.made), "cell"), counted(report.sent, "model call")
        printer().print(f"{made} made; {calls}, {report.reused:,} replies reused")


def _runs_beside() -> Callable[[], bool]:
    """Whether the run still goes on that has started this watch; always for one of its own.

    A run that is killed cannot stop it, and it would hold its GPUs.
    """
    started_by = os.environ.pop(BESIDE, None)
    return lambda: started_by is None or os.getppid() == int(started_by)
