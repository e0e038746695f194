"""`mbt plan`: the work that is left, as a table or as JSON for `mbt submit`."""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from mbt_cli.cli.doctor_study import package_notes
from mbt_cli.cli.manifests import open_manifest, warnings_of
from mbt_cli.cli.printing import printer
from mbt_cli.core.names import nearest
from mbt_cli.core.number_text import counted
from mbt_cli.core.prices import PICOS, money_text, picos_of
from mbt_cli.engine.placing import UNKNOWN, Placing, PlannedPlacement, placing_here
from mbt_cli.engine.plan import Plan, PlannedCell, make_plan, plan_json, plan_schema
from mbt_cli.engine.states import States, Status
from mbt_cli.engine.submit import load_launcher
from mbt_cli.engine.training_estimate import PlannedTraining, training_lines
from mbt_cli.errors import UsageError
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.registry import LAUNCHERS

_STATES: tuple[Status, ...] = ("done", "grown", "stale", "missing", "failed")
_MAX_NEEDS = 4


def print_schema() -> None:
    """Print the JSON Schema of plans."""
    typer.echo(plan_schema(), nl=False)


def plan(
    path: Path | None,
    only: Sequence[str] | None,
    overrides: Sequence[str] | None,
    presets: Path | None,
    *,
    as_json: bool,
    replace: bool,
    max_cells: int,
    max_hours: float,
    max_rows: int,
    on: str | None = None,
) -> None:
    """Print the plan of a study: a table on a terminal, JSON elsewhere.

    Raises:
        UsageError: No manifest is given.
    """
    if path is None:
        raise UsageError("no manifest given", hint="mbt plan manifests/paper.toml")
    manifest, machine = open_manifest(path, overrides, presets)
    environment = machine.environment
    placing, place = placing_here(environment), "--slurm"
    if on is not None:
        folders = PresetFolders.usual(extra=machine.presets, config=machine.config)
        kind = _kind_with(on, folders)
        launcher = load_launcher(kind, on, folders, {})
        placing = Placing(launcher.gpus() or UNKNOWN, environment)
        place = f"{launcher.option or f'--launcher {kind} --preset'} {shlex.quote(on)}"
    made = make_plan(
        *(manifest, States(manifest, machine.runs)),
        only=only or (),
        overrides=overrides or (),
        presets=presets,
        replace=replace,
        max_cells=max_cells,
        max_hours=max_hours,
        max_rows=max_rows,
        placing=placing,
    )
    for line in (*warnings_of(manifest), *package_notes(manifest)):
        typer.echo(line, err=True)  # before a job waits in a queue only to fail
    for training in made.trainings:
        if training.warning is not None:
            typer.echo(f"warning: {training.warning}", err=True)
    if as_json or not typer.get_text_stream("stdout").isatty():
        typer.echo(plan_json(made), nl=False)
        return
    out = printer()
    out.print(_stages(made))
    if made.jobs:
        out.print(_jobs(made))
    if made.placements:
        out.print(placements_table(made.placements))
    if made.trainings:
        out.print(trainings_table(made.trainings))
    for line in _notes(made, place):
        out.print(line)


def _kind_with(preset: str, folders: PresetFolders) -> str:
    """The kind of launcher that has a preset.

    Raises:
        UsageError: None has it, or several have.
    """
    kinds = [kind for kind, one in LAUNCHERS.kinds().items() if one.has_presets]
    found = [kind for kind in kinds if folders.find(kind, preset)]
    if len(found) == 1:
        return found[0]
    where = ", ".join(f"presets/{kind}/" for kind in found or kinds)
    if found:
        raise UsageError(
            f"`--preset {preset}`: there is one in each of {where}", hint="rename one of them"
        )
    names = {name for kind in kinds for name in folders.names(kind)}
    raise UsageError(f"no preset `{preset}` in {where}", hint=nearest(preset, names))


def trainings_table(trainings: Sequence[PlannedTraining]) -> Table:
    """The estimate of each training, in words."""
    table = Table(title="trainings (mbt help training)", title_justify="left", show_lines=True)
    table.add_column("training", overflow="fold")
    table.add_column("estimate", overflow="fold")
    for training in trainings:
        table.add_row(Text(training.address), Text("\n".join(training_lines(training))))
    return table


def placements_table(placements: Sequence[PlannedPlacement]) -> Table:
    """Where each model is served, with the numbers."""
    table = Table(title="placements (mbt help presets)", title_justify="left", show_lines=True)
    for column in ("model", "on", "chosen"):
        table.add_column(column, overflow="fold")
    for placement in placements:
        table.add_row(*(Text(t) for t in (placement.model, placement.gpus, placement.why)))
    return table


def _stages(plan: Plan) -> Table:
    """A row for each stage; empty columns are left out."""
    states = [s for s in _STATES if any(cell.status == s for cell in plan.cells)]
    sums: dict[str, Callable[[Sequence[PlannedCell]], str]] = {
        "rows": lambda cells: _sum([cell.rows for cell in cells]),
        "requests": lambda cells: _requests([c for c in cells if c.status != "done"]),
        "tokens": lambda cells: _sum([c.tokens for c in cells if c.status != "done"]),
        "at most": lambda cells: _sum([c.most_tokens for c in cells if c.status != "done"]),
        "GPU hours": lambda cells: _sum([c.gpu_hours for c in cells if c.status != "done"]),
        plan.currency: lambda cells: _amount([c.money for c in cells if c.status != "done"]),
        f"{plan.currency} at most": lambda cells: _amount(
            [c.most_money for c in cells if c.status != "done"]
        ),
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


def _requests(cells: Sequence[PlannedCell]) -> str:
    """The most requests, where they are more than one for each row."""
    if all(cell.requests == cell.rows or cell.requests is None for cell in cells):
        return ""
    return _sum([cell.requests for cell in cells])


def _sum(numbers: Sequence[int | None] | Sequence[float | None]) -> str:
    """The sum of the known numbers, with `+` if some are unknown; empty if all are."""
    known = [n for n in numbers if n is not None]
    if not known:
        return ""
    total = sum(known)
    text = f"{total:,.1f}" if isinstance(total, float) else f"{total:,}"
    for unit, size, least in (("M", 10**6, 10**7), ("G", 10**9, 10**9)):
        if isinstance(total, int) and total >= least:  # an estimate has few significant digits
            text = f"{total / size:,.1f} {unit}"
    return text + ("+" if len(known) < len(numbers) else "")


def _amount(amounts: Sequence[float | None]) -> str:
    """The sum of the known amounts of money; empty if there are none."""
    known = [amount for amount in amounts if amount is not None]
    return money_text(round(sum(known) * PICOS), "").strip() if known else ""


def _jobs(plan: Plan) -> Table:
    table = Table(title="jobs", title_justify="left")
    for column in ("job", "cells", "tasks", "GPUs", "model", "after"):
        table.add_column(
            column,
            justify="right" if column in ("cells", "tasks", "GPUs") else "left",
            no_wrap=column not in ("model", "after"),
        )
    for job in plan.jobs:
        more = len(job.needs) - _MAX_NEEDS
        after = ", ".join(job.needs[:_MAX_NEEDS]) + (f" and {more} more" if more > 0 else "")
        gpus = str(job.resources.gpus or "")
        table.add_row(job.id, str(len(job.cells)), str(job.shards), gpus, job.model, after)
    return table


def _money_lines(plan: Plan) -> list[str]:
    """What the study has cost, will cost and may cost."""
    if plan.spent is None:
        return []
    left = [cell for cell in plan.cells if cell.status != "done" and cell.money is not None]
    spent, rest, most = (
        money_text(round(amount * PICOS), plan.currency)
        for amount in (
            plan.spent,
            sum(cell.money or 0 for cell in left),
            sum(cell.most_money or cell.money or 0 for cell in left),
        )
    )
    lines = [f"spent {spent}; the rest costs about {rest}, at most {most} (mbt help cost)"]
    if plan.budget is not None:
        budget = money_text(picos_of(plan.budget), plan.currency)
        about = plan.spent + sum(cell.money or 0 for cell in left)
        over = ": by the estimate, it stops the study" if about > plan.budget else ""
        lines.append(f"budget {budget}{over}")
    return lines


def _notes(plan: Plan, place: str) -> list[str]:
    lines = [f"{counted(len(plan.jobs), 'job')}, {counted(plan.boots, 'server start')}"]
    stale = sum(cell.status == "stale" for cell in plan.cells)
    if plan.only:
        planned = len({address for job in plan.jobs for address in job.cells})
        lines.append(f"{planned} of {len(plan.cells)} cells: those of `--only` and what they need")
    if stale and not plan.replace:
        lines.append(f"{counted(stale, 'stale cell')} not planned; `--replace` reruns them")
    if limited := sum(job.resources.limit_seconds is not None for job in plan.jobs):
        lines.append(
            f"{counted(limited, 'job')} with a time limit by the speed of finished cells: "
            "1.5 times the hours, and 30 minutes; the others have the preset's"
        )
    if plan.unread:
        lines.append(f"{counted(len(plan.unread), 'cell')} that nothing reads")
    if plan.left_out:
        left_out = counted(len(plan.left_out), "optional cell")
        lines.append(f"{left_out} excluded: the source does not exist")
    lines += _money_lines(plan)
    lines += plan.advice
    if plan.jobs:
        lines.append(f"submit: {plan.command()} | mbt submit {place}")
    return lines
