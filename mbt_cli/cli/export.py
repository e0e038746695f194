"""`mbt export`: a stage, report or scores as a data set, or a training as a model repository."""

from collections.abc import Sequence
from pathlib import Path

import typer

from mbt_cli.cli.show import cells_below
from mbt_cli.engine import export as exports
from mbt_cli.engine import export_report as reports
from mbt_cli.engine.runner import hub_access
from mbt_cli.errors import UsageError
from mbt_cli.settings import read_machine
from mbt_cli.stages.curriculum import Direction
from mbt_cli.store.reading import require_lineage


def export(
    stage: Path,
    to: str,
    *,
    jsonl: bool,
    order: Direction | None,
    metric: str | None,
    write: bool,
    public: bool,
) -> None:
    """Write the cells below a folder, or only show the card that would be written.

    Args:
        stage: Folder of a stage or of a cell.
        to: `hub:ORG/NAME`, `wandb:PROJECT` for a report, or a new folder.
        jsonl: Export scores, with their rollouts and verdicts, as JSON lines.
        order: Export the questions of scores in this order.
        metric: By this metric.
        write: Write; without it nothing is written.
        public: Make a new repository public.
    """
    cells = cells_below(stage)
    if jsonl and order is not None:
        raise UsageError("`--jsonl` and `--order` write different files", hint="give one of them")
    if metric is not None and order is None:
        raise UsageError("`--metric` is for `--order`", hint="--order easy_first")
    if to.startswith(reports.WANDB) and (jsonl or order):
        raise UsageError(
            f"`{'--jsonl' if jsonl else '--order'}` writes files, which Weights & Biases does not "
            "take",
            hint="--to FOLDER or --to hub:ORG/NAME",
        )
    if to.startswith(reports.WANDB):
        _log(cells, to, write=write)
        return
    exports.check_place(to, public=public)
    if order is not None:
        found = exports.order_of(cells, order, metric)
    else:
        found = exports.jsonl_of(stage, cells) if jsonl else exports.export_of(cells)
    access = hub_access(read_machine())
    if not write:
        visibility = "public" if public else "private"
        typer.echo(found.card)
        typer.echo(f"nothing is written: `--write` writes this to {to} ({visibility} if it is new)")
        if refusal := exports.refusal(to, access):
            typer.echo(f"`--write` would be refused: {refusal}", err=True)
        return
    typer.echo(f"written: {exports.publish(found, to, access, private=not public)}")


def _log(cells: Sequence[Path], to: str, *, write: bool) -> None:
    """Log a report to Weights & Biases, or only show what would be logged."""
    if len(cells) != 1 or require_lineage(cells[0]).kind != "report":
        raise UsageError(
            "only a report is logged to Weights & Biases; trainings log while they run",
            hint="name the folder of the report: mbt export runs/STUDY/report",
        )
    report = reports.read_report(cells[0])
    if write:
        typer.echo(f"logged: {reports.log_to_wandb(report, to)}")
        return
    for name, value in reports.wandb_values(report).items():
        typer.echo(f"{name} = {value:g}")
    typer.echo(f"tables: {', '.join(table.name for table in report.tables)}")
    typer.echo(f"nothing is logged: `--write` logs these, the figures and the files to {to}")
    if refused := reports.refusal_of_wandb(to):
        typer.echo(f"`--write` would be refused: {refused.message} ({refused.hint})", err=True)
