"""`mbt plan`: the work that is left, as a table or as JSON for `mbt submit`."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from rich.table import Table

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.cli.printing import counted, printer
from mbt_cli.engine.plan import (
    Limits,
    Plan,
    PlannedCell,
    PlanOptions,
    make_plan,
    plan_json,
    plan_schema,
)
from mbt_cli.engine.states import States, Status
from mbt_cli.errors import UsageError

_STATES: tuple[Status, ...] = ("done", "grown", "stale", "missing", "failed")


def print_plan(plan: Plan) -> None:
    """Every stage with its cells by state, then the jobs that are left."""
    console = printer()
    console.print(_stages(plan))
    if plan.jobs:
        console.print(_jobs(plan))
    for line in _notes(plan):
        console.print(line, markup=False)


def _stages(plan: Plan) -> Table:
    """A row a stage; states that no cell is in, and sums that nobody knows, have no column."""
    states = [s for s in _STATES if any(cell.status == s for cell in plan.cells)]
    sums: dict[str, Callable[[Sequence[PlannedCell]], str]] = {
        "rows": lambda cells: _sum([cell.rows for cell in cells]),
        "tokens": lambda cells: _sum([c.tokens for c in cells if c.status != "done"]),
        "GPU hours": lambda cells: _sum([c.gpu_hours for c in cells if c.status != "done"]),
    }
    known = [name for name, summed in sums.items() if summed(plan.cells)]
    table = Table(title=f"{plan.manifest}: study {plan.study}", title_justify="left")
    table.add_column("stage", no_wrap=True)
    for column in (*states, *known):
        table.add_column(column, justify="right", no_wrap=True)
    stages: dict[str, list[PlannedCell]] = {}
    for cell in plan.cells:
        stages.setdefault(cell.address.partition("/")[0], []).append(cell)
    for stage, cells in stages.items():
        found = Counter(cell.status for cell in cells)
        table.add_row(
            stage,
            *(str(found[s]) if found[s] else "" for s in states),
            *(sums[name](cells) for name in known),
        )
    return table


def _sum(numbers: list[int | None] | list[float | None]) -> str:
    """A sum; `+` where some are not known, nothing where none is."""
    known = [n for n in numbers if n is not None]
    if not known:
        return ""
    total = sum(known)
    text = f"{total:,.1f}" if isinstance(total, float) else _short(total)
    return text + ("+" if len(known) < len(numbers) else "")


def _short(count: int) -> str:
    """A large count with its first digits: estimates deserve no more."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if count >= 10 * size or (count >= size and unit == "G"):
            return f"{count / size:,.1f} {unit}"
    return f"{count:,}"


def _jobs(plan: Plan) -> Table:
    table = Table(title="jobs", title_justify="left")
    for column in ("job", "cells", "tasks", "GPUs", "server", "after"):
        table.add_column(
            column,
            justify="right" if column in ("cells", "tasks", "GPUs") else "left",
            no_wrap=column not in ("server", "after"),
        )
    for job in plan.jobs:
        after = ", ".join(job.needs[:4]) + (
            f" and {len(job.needs) - 4} more" * (len(job.needs) > 4)
        )
        table.add_row(
            job.id,
            str(len(job.cells)),
            str(job.shards),
            str(job.resources.get("gpus") or ""),
            job.model,
            after,
        )
    return table


def _notes(plan: Plan) -> list[str]:
    lines = [f"{counted(len(plan.jobs), 'job')}, {counted(plan.boots, 'server boot')}"]
    states = Counter(cell.status for cell in plan.cells)
    if plan.only:
        planned = len({address for job in plan.jobs for address in job.cells})
        lines.append(f"{planned} of {len(plan.cells)} cells by `--only` and what they need")
    if states["stale"] and not plan.replace:
        lines.append(f"{states['stale']} stale cells are left as they are; `--replace` plans them")
    if plan.unread:
        lines.append(f"{len(plan.unread)} cells are made and read by nothing")
    if plan.left_out:
        lines.append(f"{len(plan.left_out)} optional cells are left out: their source is not there")
    if plan.jobs:
        lines.append(f"submit: {plan.command()} | mbt submit --slurm")
    return lines


def print_schema() -> None:
    """Print the JSON Schema of plans."""
    typer.echo(plan_schema(), nl=False)


def plan(
    path: Path | None,
    only: Sequence[str] | None,
    overrides: Sequence[str] | None,
    limits: tuple[int, float, int],
    presets: Path | None,
    *,
    as_json: bool,
    replace: bool,
) -> None:
    """Print the plan of a study: a table on a terminal, JSON elsewhere.

    Raises:
        UsageError: No manifest is given.
    """
    if path is None:
        raise UsageError("no manifest given", hint="mbt plan manifests/paper.toml")
    manifest, machine = open_manifest(path, overrides, presets)
    options = PlanOptions(Limits(*limits), only or (), overrides or (), presets, replace)
    made = make_plan(manifest, States(manifest, machine.runs), options)
    if as_json or not typer.get_text_stream("stdout").isatty():
        typer.echo(plan_json(made), nl=False)
    else:
        print_plan(made)
