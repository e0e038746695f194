"""`mbt data`: download what a study needs, and list what is on this machine."""

from collections.abc import Sequence
from pathlib import Path

import orjson
import typer
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import printer
from mbt_cli.engine.fetch import Needed, Stock, fetch_all, missing_error, needed_by, stock_of
from mbt_cli.engine.runner import hub_access
from mbt_cli.settings import Machine, read_machine
from mbt_cli.store.hub import cached_repos

_SHOWN_COMMIT = 12


def needs_view(stocks: Sequence[tuple[Needed, Stock]]) -> RenderableType:
    """Each needed thing with its size, and how much is still to fetch."""
    if not stocks:
        return Text("nothing to fetch: every model and data set is local, made by rule or hosted")
    table = Table(title="what the study needs", title_justify="left")
    for column in ("name", "where", "files", "size", "to fetch"):
        table.add_column(column, justify="left" if column in ("name", "where") else "right")
    missing = 0
    for needed, stock in stocks:
        size = stock.size
        if size is None:
            table.add_row(needed.name, needed.what, "?", "?", "unknown")
            continue
        missing += size.missing_bytes
        left = decimal(size.missing_bytes) if size.missing_files else "here"
        table.add_row(needed.name, needed.what, str(size.files), decimal(size.bytes), left)
    lines = [Text(f"{one.name}: {s.why}", style="yellow") for one, s in stocks if s.why]
    unknown = sum(stock.size is None for _, stock in stocks)
    return Group(table, Text(f"to fetch: {_total(missing, unknown)}"), *lines)


def _total(missing_bytes: int, unknown: int) -> str:
    """What is known to be missing, and how many sizes are not known."""
    if not unknown:
        return decimal(missing_bytes)
    several = f"{unknown} whose size is unknown"
    return f"{decimal(missing_bytes)}, and {several}" if missing_bytes else several


def stock_view(machine: Machine) -> RenderableType:
    """The local caches: the hub's repositories and mbt's own weights."""
    table = Table(title="what is on this machine", title_justify="left")
    for column in ("kind", "name", "commits", "size"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for repo in cached_repos(hub_access(machine)):
        commits = ", ".join(commit[:_SHOWN_COMMIT] for commit in repo.commits)
        table.add_row(repo.type, repo.repo, commits, decimal(repo.bytes))
    for path in _own_weights(machine):
        table.add_row("embedded model", path.name, "", decimal(path.stat().st_size))
    return table if table.row_count else Text("nothing is here yet: `mbt data fetch MANIFEST`")


def stock_json(machine: Machine) -> str:
    """The same as a list of objects, sizes in bytes."""
    repos = [
        {"kind": repo.type, "name": repo.repo, "commits": repo.commits, "bytes": repo.bytes}
        for repo in cached_repos(hub_access(machine))
    ]
    own = [
        {"kind": "embedded model", "name": path.name, "commits": [], "bytes": path.stat().st_size}
        for path in _own_weights(machine)
    ]
    return orjson.dumps([*repos, *own], option=orjson.OPT_INDENT_2).decode()


def _own_weights(machine: Machine) -> list[Path]:
    return [path for path in sorted((machine.cache / "weights").glob("*")) if path.is_file()]


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
        MbtError: Something could not be fetched.
    """
    manifest, machine = open_manifest(path, overrides, presets)
    needed = needed_by(manifest, machine, models=models, benchmarks=benchmarks)
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


def list_cached(*, as_json: bool) -> None:
    """Print the models and data sets on this machine."""
    machine = read_machine()
    if as_json:
        typer.echo(stock_json(machine))
    else:
        printer().print(stock_view(machine))
