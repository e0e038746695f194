"""What `mbt run` and the stage verbs share: choose cells, run them, say what became of them."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mbt_cli.commands.json_views import rehearsals_json, result_json
from mbt_cli.commands.opening import open_manifest
from mbt_cli.commands.printing import printer
from mbt_cli.commands.screen import screen
from mbt_cli.commands.signals import stoppable
from mbt_cli.commands.views import dry_run_total, dry_run_view, result_view
from mbt_cli.core.shards import Shard, parse_shard
from mbt_cli.errors import UsageError
from mbt_cli.manifest.load import Manifest
from mbt_cli.planning.dry_run import Rehearsal, rehearse
from mbt_cli.planning.execute import Execution, RunOptions
from mbt_cli.planning.select import select


@dataclass(frozen=True)
class Told:
    """The options of a verb."""

    only: list[str] | None
    overrides: list[str] | None
    dry_run: bool
    replace: bool
    retry_failed: bool
    presets: Path | None
    quiet: bool
    verbose: bool
    shard: Shard | None = None
    as_json: bool = False


def shard_of(text: str | None) -> Shard | None:
    """`3/8` as typed."""
    try:
        return None if text is None else parse_shard(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _shared(manifest: Manifest, addresses: list[str]) -> list[str]:
    """The cells that shards share: questions are no part of that, they are made before."""
    return [a for a in addresses if manifest.cells[a].kind != "questions"]


def _as_typed(path: Path, kind: str | None, told: Told) -> str:
    """The command that goes on with this one: what decides its cells and their settings."""
    is_hidden = Path(sys.argv[0]).name == "mbt" and not shutil.which("mbt")
    called = sys.argv[0] if is_hidden else "mbt"  # `make` calls one that is not on the path yet
    words = [called, kind or "run", str(path)]
    words += [word for cells in told.only or () for word in ("--only", cells)]
    words += [word for key in told.overrides or () for word in ("--set", key)]
    words += ["--presets", str(told.presets)] if told.presets else []
    return shlex.join(words)


def run_cells(path: Path, kind: str | None, told: Told) -> None:
    """Run the cells of one kind, or of all, that are not done."""
    manifest, machine = open_manifest(path, told.overrides, told.presets)
    addresses = select(manifest, kind=kind, only=told.only or ())
    if told.shard is not None:
        addresses = _shared(manifest, addresses)
    out = printer()
    if told.dry_run:
        _tell(out, rehearse(manifest, machine, addresses, retry_failed=told.retry_failed), told)
        return
    execution = Execution(
        manifest, machine, RunOptions(told.replace, told.retry_failed, told.shard)
    )
    with (
        stoppable(_as_typed(path, kind, told)),
        screen(told.quiet, told.verbose) as progress,
    ):
        report = execution.run(addresses, progress)
    if told.as_json:
        out.file.write(f"{result_json(manifest, machine, report)}\n")
        return
    for view in result_view(manifest, machine, report, quiet=told.quiet):
        out.print(view)


def _tell(out: Console, rehearsals: Iterator[Rehearsal], told: Told) -> None:
    """What a dry run found: each cell as soon as it is known, or one document of all."""
    if told.as_json:
        out.file.write(f"{rehearsals_json(list(rehearsals))}\n")
        return
    told_of = []
    for rehearsal in rehearsals:
        out.print(dry_run_view(rehearsal))
        told_of.append(rehearsal)
    out.print(dry_run_total(told_of))
