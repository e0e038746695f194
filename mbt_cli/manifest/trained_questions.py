"""Which questions a study trains on, and which it evaluates on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mbt_cli.manifest.cell import Cell


def trained_and_evaluated(cells: Mapping[str, Cell]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Addresses of the cells of questions that are trained on, and of those evaluated on.

    Evaluated on are the questions that checkpoints are asked, and those behind the `validation`
    of a training.
    """
    trained: dict[str, None] = {}
    evaluated: dict[str, None] = {}
    for cell in cells.values():
        inputs = cell.resolution.inputs
        if cell.kind == "train":
            own = inputs.get("data", ())
            evaluated.update(dict.fromkeys(_questions_of(cells, inputs.get("validation", ()))))
            asked = () if own else inputs.get("questions", ())
            trained.update(dict.fromkeys((*_questions_of(cells, own), *asked)))
        elif inputs.get("checkpoints"):
            evaluated.update(dict.fromkeys(_questions_of(cells, [cell.address])))
    return tuple(trained), tuple(evaluated)


def with_trained_questions(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """The cells; reports know which questions are trained and evaluated on."""
    trained, evaluated = trained_and_evaluated(cells)
    if not trained or not evaluated:
        return dict(cells)
    return {
        address: replace(
            cell, resolution=replace(cell.resolution, trained=trained, evaluated=evaluated)
        )
        if cell.kind == "report"
        else cell
        for address, cell in cells.items()
    }


def _questions_of(cells: Mapping[str, Cell], addresses: Sequence[str]) -> Iterator[str]:
    """The questions of rollouts and traces; those of a training are not theirs."""
    for address in addresses:
        cell = cells[address]
        if cell.kind == "questions":
            yield address
        elif cell.kind != "train":
            yield from _questions_of(cells, cell.needs)
