"""`mbt compare`: is one cell better than another, on the questions that both have?"""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_cell_folder
from mbt_cli.commands.options import AsJson


def compare(
    first: Annotated[
        str,
        typer.Argument(
            help="Cell folder or glob, such as `runs/x/scores/*`.",
            autocompletion=complete_cell_folder,
        ),
    ],
    second: Annotated[
        str, typer.Argument(help="What it is compared with.", autocompletion=complete_cell_folder)
    ],
    show: Annotated[int, typer.Option(help="Questions that differ most to show.")] = 0,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=100)] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare cells paired by question: differences, intervals, p values, who alone was right.

    Two judge cells over the same rollouts: Cohen's kappa and the confusion table.
    """
    from mbt_cli.commands.agreement_view import agreement_json, agreement_view
    from mbt_cli.commands.compare_view import cells_of, comparison_json, comparison_view
    from mbt_cli.commands.printing import printer
    from mbt_cli.stages.agreeing import agreement, are_verdicts
    from mbt_cli.stages.comparing import compared, pairs

    out = printer()
    for left, right in pairs(cells_of(first), cells_of(second)):
        if are_verdicts(left, right):
            agreed = agreement(left, right)
            if as_json:
                typer.echo(agreement_json(left, right, agreed))
            else:
                out.print(agreement_view(left, right, agreed))
            continue
        comparison = compared(left, right, resamples=resamples, seed=seed)
        if as_json:
            typer.echo(comparison_json(left, right, comparison))
        else:
            out.print(comparison_view(Path(left), Path(right), comparison, show))
