"""Judge models that judge replies of their own kind, from the cells of a manifest."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mbt_cli.core.model_families import RelatedJudge, relation
from mbt_cli.manifest.cell import Cell


def related_judges(cells: Mapping[str, Cell], judged: Iterable[Cell]) -> tuple[RelatedJudge, ...]:
    """Related pairs of a judge model and a judged model, each once.

    Args:
        cells: Every cell of the study.
        judged: Cells of verdicts; cells of other kinds are passed over.
    """
    pairs = (_related(cells, cell) for cell in judged if cell.kind == "judge")
    return tuple(dict.fromkeys(pair for pair in pairs if pair is not None))


def with_related_judges(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """The cells; those that report scores know the related judges behind their numbers."""
    found = dict(cells)
    for address, cell in cells.items():
        scores = [cells[one] for one in cell.resolution.inputs.get("scores", ())]
        judged = [cells[one] for score in scores for one in score.needs]
        if pairs := related_judges(cells, judged):
            resolution = replace(cell.resolution, related_judges=pairs)
            found[address] = replace(cell, resolution=resolution)
    return found


def _related(cells: Mapping[str, Cell], judged: Cell) -> RelatedJudge | None:
    """The pair of a cell of verdicts; None if they are not related or one is not a model."""
    judge = judged.resolution.models.get("judge_model")
    rollouts = [cells[address].resolution for address in judged.resolution.inputs["rollouts"]]
    if judge is None or judge.weights_name is None or not rollouts:
        return None
    model = rollouts[0].models.get("model")
    # replies that were made elsewhere have a model by name only
    name = rollouts[0].axes.get("model", "")
    weights = name if model is None else model.weights_name
    if not weights:
        return None
    is_trained = bool(rollouts[0].inputs.get("checkpoints"))
    what = relation(judge.weights_name, weights, is_trained=is_trained)
    return None if what is None else RelatedJudge(judge.name, name, what)
