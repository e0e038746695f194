"""`mbt data`: download what a study needs, and list what is on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import printer
from mbt_cli.engine.fetch import (
    CachedSize,
    Needed,
    cached_size,
    fetch_all,
    missing_error,
    needed_by,
)
from mbt_cli.engine.runner import hub_access
from mbt_cli.settings import read_machine
from mbt_cli.store.hub import HubRequest, cached_repos, fetch_files
from mbt_cli.store.objects import parts_of
from mbt_cli.store.objects import push as push_objects

_SHOWN_COMMIT = 12


def fetch(
    path: Path,
    overrides: list[str] | None,
    presets: Path | None,
    models: Sequence[str],
    benchmarks: Sequence[str],
    *,
    dry_run: bool,
) -> None:
    """Download what a manifest needs; with `dry_run`, only print the sizes.

    Raises:
        MbtError: A download failed.
    """
    manifest, machine = open_manifest(path, overrides, presets)
    needed = needed_by(manifest, machine, models=models, benchmarks=benchmarks)
    out = printer()
    out.print(_needed_view([(one, cached_size(one, machine)) for one in needed]))
    if dry_run:
        return
    results = []
    for result in fetch_all(needed, machine, lambda one: out.print(f"{one.name}: {one.what}")):
        results.append(result)
        out.print(f"  in {result.path}" if result.error is None else "  failed")
    if error := missing_error(results):
        raise error


def push(what: Path, to: str, overrides: list[str] | None, presets: Path | None) -> None:
    """Upload a file, a folder, or the models and data sets of a manifest.

    Raises:
        MbtError: Something could not be fetched or uploaded; what is there stays.
    """
    parts_of(to)
    out = printer()
    if what.suffix != ".toml":
        read_machine()  # the keys in `.env`
        _upload(what, to)
        out.print(Text(to))
        return
    manifest, machine = open_manifest(what, overrides, presets)
    machine = machine.model_copy(update={"places": {}})
    needed = needed_by(manifest, machine, models=(), benchmarks=())
    of_hub = [one for one in needed if isinstance(one.files, HubRequest)]
    results = list(fetch_all(of_hub, machine, lambda one: typer.echo(f"{one.what}", err=True)))
    places = {}
    for result in results:
        if result.path is not None and isinstance(result.needed.files, HubRequest):
            repo = result.needed.files.repo
            places[repo] = f"{to.rstrip('/')}/{repo}"
            request = result.needed.files
            for file in fetch_files(request, hub_access(machine)).paths:
                name = file.relative_to(result.path).as_posix()
                _upload(file, f"{places[repo]}/{name}")
    if error := missing_error(results):
        raise error
    if not places:
        out.print(Text("nothing to upload: every model and data set is local, generated or hosted"))
        return
    typer.echo("\n".join(["[run.places]", *(f'"{k}" = "{v}"' for k, v in places.items())]))


def _upload(path: Path, to: str) -> None:
    for address, size in push_objects(path, to):
        typer.echo(f"{address}  {decimal(size)}", err=True)


def list_cached(*, as_json: bool) -> None:
    """Print the models and data sets on this machine."""
    machine = read_machine()
    found: list[dict[str, Any]] = [
        {"kind": repo.type, "name": repo.repo, "commits": repo.commits, "bytes": repo.bytes}
        for repo in cached_repos(hub_access(machine))
    ]
    found += [
        {"kind": "embedded model", "name": path.name, "commits": [], "bytes": path.stat().st_size}
        for path in sorted((machine.cache / "weights").glob("*"))
        if path.is_file()
    ]
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    table = Table(title="cached on this machine", title_justify="left")
    for column in ("kind", "name", "commits", "size"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for one in found:
        commits = ", ".join(commit[:_SHOWN_COMMIT] for commit in one["commits"])
        table.add_row(one["kind"], one["name"], commits, decimal(one["bytes"]))
    printer().print(table if found else Text("nothing is cached yet: `mbt data fetch MANIFEST`"))


def _needed_view(sizes: Sequence[tuple[Needed, CachedSize]]) -> RenderableType:
    """Each needed thing with its size, and how much of it is left to download."""
    if not sizes:
        return Text("nothing to fetch: every model and data set is local, generated or hosted")
    table = Table(title="what the study needs", title_justify="left")
    for column in ("name", "source", "files", "size", "to fetch"):
        table.add_column(column, justify="left" if column in ("name", "source") else "right")
    missing = unknown = 0
    for needed, cached in sizes:
        if (size := cached.size) is None:
            unknown += 1
            table.add_row(needed.name, needed.what, "?", "?", "unknown")
        else:
            missing += size.missing_bytes
            left = decimal(size.missing_bytes) if size.missing_files else "cached"
            table.add_row(needed.name, needed.what, str(size.files), decimal(size.bytes), left)
    total = [decimal(missing)] if missing or not unknown else []
    total += [f"{unknown} of unknown size"] if unknown else []
    reasons = [Text(f"{one.name}: {c.why}", style="yellow") for one, c in sizes if c.why]
    return Group(table, Text(f"to fetch: {', and '.join(total)}"), *reasons)
