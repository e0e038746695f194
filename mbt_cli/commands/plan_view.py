"""A plan on the screen: stages, jobs and what waits for what."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from mbt_cli.planning.plan_document import Plan, PlannedCell
from mbt_cli.planning.states import Status

_STATES: tuple[Status, ...] = ("done", "grown", "stale", "missing", "failed")


def print_plan(plan: Plan) -> None:
    """Every stage with its cells by state, then the jobs that are left."""
    console = Console(highlight=False)
    console.print(_stages(plan))
    if plan.jobs:
        console.print(_jobs(plan))
    for line in _notes(plan):
        console.print(line, markup=False)


def _stages(plan: Plan) -> Table:
    table = Table(title=f"{plan.manifest}: study {plan.study}", title_justify="left")
    table.add_column("stage")
    for column in (*_STATES, "rows", "tokens", "GPU hours"):
        table.add_column(column, justify="right")
    stages: dict[str, list[PlannedCell]] = {}
    for cell in plan.cells:
        stages.setdefault(cell.address.partition("/")[0], []).append(cell)
    for stage, cells in stages.items():
        states = Counter(cell.status for cell in cells)
        table.add_row(
            stage,
            *(str(states[s]) if states[s] else "" for s in _STATES),
            _sum([cell.rows for cell in cells]),
            _sum([cell.tokens for cell in cells if cell.status != "done"]),
            _sum([cell.gpu_hours for cell in cells if cell.status != "done"]),
        )
    return table


def _sum(numbers: list[int | None] | list[float | None]) -> str:
    """A sum; `+` where some are not known, nothing where none is."""
    known = [n for n in numbers if n is not None]
    if not known:
        return ""
    total = sum(known)
    text = f"{total:,.1f}" if isinstance(total, float) else f"{total:,}"
    return text + ("+" if len(known) < len(numbers) else "")


def _jobs(plan: Plan) -> Table:
    table = Table(title="jobs", title_justify="left")
    for column in ("job", "cells", "tasks", "GPUs", "server", "after"):
        table.add_column(
            column, justify="right" if column in ("cells", "tasks", "GPUs") else "left"
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
    lines = [f"{len(plan.jobs)} jobs, {plan.boots} server boots"]
    states = Counter(cell.status for cell in plan.cells)
    if states["stale"] and not plan.replace:
        lines.append(f"{states['stale']} stale cells are left as they are; `--replace` plans them")
    if plan.unread:
        lines.append(f"{len(plan.unread)} cells are made and read by nothing")
    if plan.left_out:
        lines.append(f"{len(plan.left_out)} optional cells are left out: their source is not there")
    if plan.jobs:
        lines.append(f"submit: mbt plan {plan.manifest} | mbt submit --slurm")
    return lines
