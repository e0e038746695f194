"""`mbt status`, `mbt logs` and `mbt cancel`: the jobs of submitted studies."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.manifests import study_named
from mbt_cli.cli.printing import printer
from mbt_cli.engine.status import (
    CellStatus,
    Doing,
    StudyStatus,
    cancel_jobs,
    log_file,
    status_json,
    study_status,
)
from mbt_cli.engine.submit import studies_with_submissions
from mbt_cli.errors import UsageError
from mbt_cli.settings import read_machine

_LOOK_SECONDS = 5.0
_SHOWN = 20
_COLUMNS: tuple[Doing, ...] = ("done", "running", "pending", "failed", "cancelled", "missing")
_STYLES: Mapping[Doing, str] = {"failed": "red", "cancelled": "yellow", "running": "green"}


def print_status(status: StudyStatus) -> None:
    """One look."""
    printer().print(_shown(status, {}))


def watch_status(runs: Path, studies: Sequence[str]) -> None:
    """Look again until Ctrl-C or until nothing waits or runs."""
    before: dict[str, tuple[float, int]] = {}
    with Live(console=Console(highlight=False), refresh_per_second=2) as live:
        while True:
            found = [study_status(runs, name) for name in studies]
            now = time.monotonic()
            speeds = {c.address: _speed(c, before, now) for s in found for c in s.cells}
            before = {c.address: (now, c.tokens) for s in found for c in s.cells}
            live.update(Group(*(_shown(status, speeds) for status in found)))
            if not any(c.doing in ("running", "pending") for s in found for c in s.cells):
                return
            time.sleep(_LOOK_SECONDS)


def _speed(cell: CellStatus, before: Mapping[str, tuple[float, int]], now: float) -> float:
    """Tokens a second since the look before."""
    then, tokens = before.get(cell.address, (now, cell.tokens))
    return max(0, cell.tokens - tokens) / (now - then) if now > then else 0.0


def _shown(status: StudyStatus, speeds: Mapping[str, float]) -> RenderableType:
    lines: list[RenderableType] = [_table(status)]
    if status.unasked:
        lines.append(Text(f"{status.unasked}; this is what the disk knows", style="yellow"))
    for doing in ("running", "pending", "failed", "cancelled"):
        cells = [cell for cell in status.cells if cell.doing == doing]
        lines.extend(_line(cell, speeds.get(cell.address, 0.0)) for cell in cells[:_SHOWN])
        if len(cells) > _SHOWN:
            lines.append(Text(f"and {len(cells) - _SHOWN} more that are {doing}"))
    lines.extend(Text(event, style="yellow") for event in status.events[-_SHOWN:])
    if any(cell.doing in ("failed", "cancelled") for cell in status.cells):
        lines.append(Text(f"go on: {status.again}"))
    return Group(*lines)


def _table(status: StudyStatus) -> Table:
    table = Table(title=f"study {status.study}", title_justify="left")
    table.add_column("stage")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    stages: dict[str, Counter[Doing]] = {}
    for cell in status.cells:
        stages.setdefault(cell.address.partition("/")[0], Counter())[cell.doing] += 1
    for stage, counts in stages.items():
        table.add_row(stage, *(str(counts[c]) if counts[c] else "" for c in _COLUMNS))
    return table


def _line(cell: CellStatus, speed: float) -> Text:
    of = "" if cell.rows is None else f" of {cell.rows:,}"
    rows = f", {cell.rows_done:,}{of} rows" if cell.rows_done else ""
    rate = f", {speed:,.0f} tokens/s" if speed else ""
    job = f", job {cell.job}" if cell.job else ""
    why = f": {cell.why}" if cell.why else ""
    text = Text(f"{cell.doing} {cell.address}{rows}{rate}{job}{why}", _STYLES.get(cell.doing, ""))
    for line in cell.log:
        text.append(f"\n    {line}", "dim")
    return text


_POLL_SECONDS = 0.5
_PIECE_BYTES = 65_536


def status(study: str | None, *, watch: bool, as_json: bool) -> None:
    """Print what the cells of one submitted study, or of all, are doing.

    Raises:
        UsageError: Nothing was submitted.
    """
    machine = read_machine()
    studies = [study_named(study)] if study else studies_with_submissions(machine.runs)
    if not studies:
        raise UsageError(
            f"nothing was submitted from `{machine.runs}`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    if watch:
        watch_status(machine.runs, studies)
        return
    for name in studies:
        found = study_status(machine.runs, name)
        if as_json:
            typer.echo(status_json(found), nl=False)
        else:
            print_status(found)


def print_log(cell: str, study: str | None, *, follow: bool) -> None:
    """Print the newest log of a cell, and with `follow` every new line until Ctrl-C."""
    path = log_file(read_machine().runs, study, cell)
    typer.echo(f"==> {path}", err=True)
    place = _print_from(path, 0)
    while follow:
        time.sleep(_POLL_SECONDS)
        place = _print_from(path, place)


def _print_from(path: Path, place: int) -> int:
    with path.open("rb") as file:
        file.seek(place)
        while piece := file.read(_PIECE_BYTES):
            typer.echo(piece.decode(errors="replace"), nl=False)
        return file.tell()


def cancel(study: str, only: Sequence[str] | None) -> None:
    """Cancel a study's queued and running jobs."""
    jobs = cancel_jobs(read_machine().runs, study_named(study), only or ())
    if jobs:
        typer.echo(f"cancelled {len(jobs)} jobs: {', '.join(jobs)}")
    else:
        typer.echo("nothing to cancel: no job of this study is queued or running")
