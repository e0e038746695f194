"""`mbt status`, `mbt logs` and `mbt cancel`: what studies do, submitted or run here."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.manifests import manifest_prices, study_named
from mbt_cli.cli.printing import Terminal, printer
from mbt_cli.cli.streams import log_text
from mbt_cli.core.number_text import counted
from mbt_cli.core.prices import PICOS, money_text
from mbt_cli.engine.spending import Spending
from mbt_cli.engine.status import (
    JOB_LOG,
    CellStatus,
    Doing,
    StudyReader,
    StudyStatus,
    begun_studies,
    can_change,
    cancel_jobs,
    job_log,
    log_file,
    status_json,
    study_status,
)
from mbt_cli.engine.submit import studies_with_submissions
from mbt_cli.errors import UsageError
from mbt_cli.settings import read_machine
from mbt_cli.store.spending import RecordedPrices

_WATCH_SECONDS = 5.0
_FOLLOW_SECONDS = 0.5
_PIECE_BYTES = 65_536
_MAX_LINES = 20
_COLUMNS: tuple[Doing, ...] = ("done", "running", "pending", "failed", "cancelled", "missing")
_STYLES: Mapping[Doing, str] = {"failed": "red", "cancelled": "yellow", "running": "green"}


def status(study: str | None, *, watch: bool, as_json: bool) -> None:
    """Print the state of the cells of one study, or of all.

    Raises:
        UsageError: Nothing was submitted or run.
    """
    machine = read_machine()
    prices = manifest_prices(study) if study else None
    studies = [study_named(study)] if study else begun_studies(machine.runs)
    if not studies:
        raise UsageError(
            f"nothing was run or submitted from `{machine.runs}`", hint="mbt run MANIFEST"
        )
    if watch:
        _watch(machine.runs, studies, prices)
        return
    for name in studies:
        found = study_status(machine.runs, name, prices)
        if as_json:
            typer.echo(status_json(found), nl=False)
        else:
            printer().print(_view(found, {}))


def print_job_log(study: str | None) -> None:
    """Print the jobs of one study, or of all, as a Markdown table for a lab notebook.

    Raises:
        UsageError: Nothing was submitted.
    """
    runs = read_machine().runs
    studies = [study_named(study)] if study else studies_with_submissions(runs)
    lines = [row for name in studies for row in job_log(runs, name)]
    if not lines:
        where = f"of `{studies[0]}` " if study else ""
        raise UsageError(
            f"nothing {where}was submitted from `{runs}`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    for row in (JOB_LOG, ("---",) * len(JOB_LOG), *lines):
        typer.echo(f"| {' | '.join(field.replace('|', chr(92) + '|') for field in row)} |")


def _watch(runs: Path, studies: Sequence[str], prices: RecordedPrices | None) -> None:
    """Show the status until Ctrl-C, or until nothing can change without a person."""
    before: dict[str, tuple[float, int]] = {}
    readers = [StudyReader(runs, name, prices) for name in studies]
    with Live(console=Terminal(), refresh_per_second=2) as live:
        while True:
            found = [reader.read() for reader in readers]
            cells = [cell for study in found for cell in study.cells]
            now = time.monotonic()
            speeds = {}
            for cell in cells:
                then, tokens = before.get(cell.address, (now, cell.tokens))
                speeds[cell.address] = (cell.tokens - tokens) / (now - then) if now > then else 0.0
            before = {cell.address: (now, cell.tokens) for cell in cells}
            live.update(Group(*(_view(study, speeds) for study in found)))
            if not any(can_change(cell) for cell in cells):
                return
            time.sleep(_WATCH_SECONDS)


def _view(status: StudyStatus, tokens_per_second: Mapping[str, float]) -> RenderableType:
    """A row for each stage, then a line for each cell that is neither done nor missing."""
    table = Table(title=f"study {status.study}", title_justify="left")
    table.add_column("stage")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    stages: dict[str, Counter[Doing]] = {}
    for cell in status.cells:
        stages.setdefault(cell.address.partition("/")[0], Counter())[cell.doing] += 1
    for stage, counts in stages.items():
        table.add_row(stage, *(str(counts[c]) if counts[c] else "" for c in _COLUMNS))
    lines: list[RenderableType] = [table]
    if status.spending is not None and status.spending.stages:
        lines += _spending(status.spending)
    if status.unasked:
        lines.append(Text(f"{status.unasked}; showing what is on disk", style="yellow"))
    for doing in ("running", "pending", "failed", "cancelled"):
        cells = [cell for cell in status.cells if cell.doing == doing]
        lines += [
            _line(cell, tokens_per_second.get(cell.address, 0)) for cell in cells[:_MAX_LINES]
        ]
        if len(cells) > _MAX_LINES:
            lines.append(Text(f"and {len(cells) - _MAX_LINES} more {doing}"))
    lines += [Text(event, style="yellow") for event in status.events[-_MAX_LINES:]]
    if not status.manifest and not any(cell.doing == "running" for cell in status.cells):
        lines.append(Text(f"cells that were begun; the others: {status.again} --dry-run"))
    elif any(cell.doing in ("failed", "cancelled") for cell in status.cells):
        lines.append(Text(f"continue: {status.again}"))
    return Group(*lines)


def _spending(spending: Spending) -> list[RenderableType]:
    """What the requests of each stage have used and cost, and the total."""
    table = Table(title="requests (mbt help cost)", title_justify="left")
    table.add_column("stage")
    table.add_column("model")
    counts = ["requests", "input", "cached", "output"]
    has_money = spending.money is not None
    for column in (*counts, *([spending.currency] if has_money else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for one in spending.stages:
        numbers = (one.requests, one.input_tokens, one.cached_tokens, one.output_tokens)
        money = [] if not has_money else ["" if one.money is None else _amount(one.money)]
        table.add_row(one.stage, one.model, *(f"{n:,}" for n in numbers), *money)
    found: list[RenderableType] = [table]
    if spending.money is not None and spending.at_most is not None:
        found.append(Text(_total(spending, spending.money, spending.at_most)))
    return found


def _total(spending: Spending, money: float, at_most: float) -> str:
    def text(amount: float) -> str:
        return money_text(round(amount * PICOS), spending.currency)

    words = f"spent {text(money)}"
    if at_most > money:
        words += f", and at most {text(at_most - money)} for requests whose end is not known"
    return words if spending.budget is None else f"{words}, of a budget of {text(spending.budget)}"


def _amount(amount: float) -> str:
    return money_text(round(amount * PICOS), "").strip()


def _line(cell: CellStatus, tokens_per_second: float) -> Text:
    of = counted(cell.rows_done, "row")
    if cell.rows is not None:
        of = f"{cell.rows_done:,} of {counted(cell.rows, 'row')}"
    rows = f", {of}" if cell.rows_done else ""
    rate = f", {tokens_per_second:,.0f} tokens/s" if tokens_per_second > 0 else ""
    job = f", job {cell.job}" if cell.job else ""
    why = f": {cell.why}" if cell.why else ""
    text = Text(f"{cell.doing} {cell.address}{rows}{rate}{job}{why}", _STYLES.get(cell.doing, ""))
    for line in cell.log:
        text.append(f"\n    {log_text(line)}", "dim")
    return text


def print_log(cell: str, study: str | None, *, follow: bool) -> None:
    """Print the newest log of a cell, and with `follow` every new line until Ctrl-C."""
    runs, looked = read_machine().runs, time.monotonic()
    path = log_file(runs, study, cell)
    typer.echo(f"==> {path}", err=True)
    with path.open("rb") as file:
        while True:
            while piece := file.read(_PIECE_BYTES):
                typer.echo(log_text(piece.decode(errors="replace")), nl=False)
            if not follow:
                return
            time.sleep(_FOLLOW_SECONDS)
            if time.monotonic() - looked > _WATCH_SECONDS:  # logs elsewhere are fetched
                log_file(runs, study, cell)
                looked = time.monotonic()


def cancel(study: str, only: Sequence[str] | None) -> None:
    """Cancel a study's queued and running jobs, and stop what runs on this machine."""
    jobs = cancel_jobs(read_machine().runs, study_named(study), only or ())
    if jobs:
        typer.echo(f"cancelled: {', '.join(jobs)}")
    else:
        typer.echo("nothing to cancel: no job of this study is queued, and nothing runs here")
