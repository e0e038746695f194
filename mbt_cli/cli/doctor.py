"""`mbt doctor`: whether this machine can run a study, one line per finding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import typer
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.doctor_study import (
    data_findings,
    models_of,
    need_findings,
    needed_variables,
    reply_findings,
)
from mbt_cli.cli.machine_checks import (
    disk_findings,
    extra_findings,
    gpu_findings,
    plugin_findings,
    python_findings,
    token_findings,
)
from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.orphans import Orphans, orphan_findings, stop_orphans
from mbt_cli.cli.printing import Terminal, foreign, printer
from mbt_cli.cli.sandbox_checks import sandbox_findings
from mbt_cli.core.findings import Finding, broken
from mbt_cli.engine.submit import load_launcher
from mbt_cli.errors import ManifestError, UsageError
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.registry import BACKENDS, LAUNCHERS
from mbt_cli.settings import Machine, read_machine

_STYLES = {"ok": "green", "absent": "yellow", "broken": "red"}

Look = Callable[[Iterator[Finding]], list[Finding]]


@contextmanager
def looking() -> Iterator[Look]:
    """Collect findings; on a terminal, show the current check on stderr."""
    with Terminal(stderr=True).status("checking") as status:

        def look(findings: Iterator[Finding]) -> list[Finding]:
            found = []
            for finding in findings:
                found.append(finding)
                status.update(foreign(f"checked {finding.group}: {finding.what}"))
            return found

        yield look


def findings_json(found: Sequence[Finding]) -> str:
    """A JSON object: whether all checks passed, and every finding."""
    is_fine = all(finding.state != "broken" for finding in found)
    return orjson.dumps({"ok": is_fine, "findings": list(found)}).decode()


def print_findings(found: Sequence[Finding]) -> None:
    """Print a table and a summary."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    table.add_column("what to do", overflow="fold", ratio=1)
    group = ""
    for finding in found:
        name = finding.group if finding.group != group else ""
        group = finding.group
        mark = "broken: " if finding.state == "broken" else ""  # readable without colours too
        do = foreign(f"{mark}{finding.do or 'ok'}", _STYLES[finding.state])
        table.add_row(name, foreign(finding.what), foreign(finding.found), do)
    out = printer()
    out.print(table)
    out.print(_summary(found))


def _summary(found: Sequence[Finding]) -> Text:
    wrong = sum(finding.state == "broken" for finding in found)
    optional = sum(finding.state == "absent" for finding in found)
    words = f"{wrong} broken" if wrong else "nothing is broken"
    if optional:
        words += f"; {optional} not installed or not set, and optional"
    return Text(words, style="red" if wrong else "green")


def stopped_words(stopped: Sequence[Orphans]) -> str:
    """The stopped servers as text."""
    if not stopped:
        return "nothing to stop: no server was left behind"
    return "\n".join(f"stopped {orphans.description}" for orphans in stopped)


def machine_findings(machine: Machine, manifest: Manifest | None) -> Iterator[Finding]:
    """Findings about this machine, and about the tokens that the manifest needs."""
    environment = machine.environment
    yield from python_findings()
    yield from extra_findings()
    yield from plugin_findings()
    yield from gpu_findings(environment)
    for launcher in LAUNCHERS.kinds().values():
        yield from launcher.doctor(environment)
    yield from sandbox_findings()
    yield from disk_findings(machine)
    for backend in BACKENDS.kinds().values():
        yield from backend.doctor(environment, machine.cache)
    needed = {} if manifest is None else needed_variables(manifest, environment)
    yield from token_findings(environment, needed)
    yield from orphan_findings()


def manifest_findings(
    manifest: Manifest, machine: Machine, *, starts_servers: bool
) -> Iterator[Finding]:
    """Findings about what a manifest needs, and one short reply from each of its models."""
    yield from need_findings(manifest, machine)
    yield from data_findings(manifest, machine)
    yield from reply_findings(models_of(manifest), machine, starts_servers=starts_servers)


def opened(
    path: Path | None, open_it: Callable[[Path], Manifest]
) -> tuple[Manifest | None, Sequence[Finding]]:
    """The manifest, or one finding per problem; neither if no manifest is given."""
    if path is None:
        return None, ()
    try:
        return open_it(path), ()
    except ManifestError as error:
        do = f"correct it: mbt check {path}"
        return None, [broken("manifest", p.where, p.what, do) for p in error.problems]


def examine(
    manifest: Path | None,
    overrides: list[str] | None,
    presets: Path | None,
    *,
    starts_servers: bool,
    as_json: bool,
) -> None:
    """Print the findings; exit with code 1 if something is broken."""
    machine = read_machine()
    study, problems = opened(manifest, lambda path: open_manifest(path, overrides, presets)[0])
    with looking() as look:
        found = [*look(machine_findings(machine, study)), *problems]
        if study is not None:
            found += look(manifest_findings(study, machine, starts_servers=starts_servers))
    if as_json:
        typer.echo(findings_json(found))
    else:
        print_findings(found)
    if any(finding.state == "broken" for finding in found):
        raise typer.Exit(1)


def examine_launcher(kind: str, preset: str | None, presets: Path | None) -> None:
    """Print findings about a launcher to stderr, and the rights that it needs to stdout.

    Raises:
        UsageError: There is no such launcher or preset, or several presets and none is named.
    """
    machine = read_machine()
    folders = PresetFolders.usual(extra=presets or machine.presets, config=machine.config)
    names = [preset] if preset else folders.names(kind)
    known = LAUNCHERS.find(kind)
    if known is not None and known.has_presets and len(names) != 1:
        which = ", ".join(names) or "none"
        raise UsageError(
            f"the presets in presets/{kind}/ are {which}",
            hint=f"mbt doctor --launcher {kind} --preset NAME",
        )
    launcher = load_launcher(kind, next(iter(names), ""), folders, {})
    for finding in type(launcher).doctor(machine.environment):
        words = [f"{finding.group}, {finding.what}: {finding.found}", finding.do]
        typer.echo("; ".join(filter(None, words)), err=True)
    if rights := launcher.permissions():
        typer.echo(rights)


def stop_orphaned_servers() -> None:
    """Stop servers that an mbt left behind, and print them."""
    typer.echo(stopped_words(stop_orphans()))
