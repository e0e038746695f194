"""Two finished cells compared on the questions that both have."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.comparison import Comparison, compare
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.errors import UsageError
from mbt_cli.registry import AnyScore
from mbt_cli.stages.joins import joined_with_questions
from mbt_cli.stages.verdicts import by_judge
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.reading import read_rows, require_lineage

_METRICS: TypeAdapter[list[AnyScore]] = TypeAdapter(list[AnyScore])
_OF_ROLLOUTS = ("exact_match", "f1_score", "answer_rate", "degeneration", "tokens")


def compared(first: Path, second: Path, *, resamples: int, seed: int) -> Comparison:
    """Compare two rollout or score cells, metric by metric, paired by question.

    Args:
        first: Folder of a finished cell.
        second: Folder of another, of the same kind.
        resamples: Bootstrap resamples.
        seed: The same seed gives the same intervals.

    Raises:
        UsageError: The cells are of other kinds, or have no question in common.
        MissingInputError: One of them, or what it was made from, is not there.
    """
    return compare(_measures(first), _measures(second), resamples=resamples, seed=seed)


def pairs(first: Sequence[Path], second: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Cells of two sets that belong together: equal on every axis on which the sets overlap.

    Raises:
        UsageError: No cell of the one meets a cell of the other.
    """
    ours = {folder: _axes(folder) for folder in first}
    theirs = {folder: _axes(folder) for folder in second}
    names = {axis for axes in (*ours.values(), *theirs.values()) for axis in axes}
    shared = [
        axis
        for axis in sorted(names)
        if {a.get(axis) for a in ours.values()} & {a.get(axis) for a in theirs.values()}
    ]
    met = [
        (left, right)
        for left, left_axes in ours.items()
        for right, right_axes in theirs.items()
        if all(left_axes.get(a) == right_axes.get(a) for a in shared)
    ]
    if not met:
        raise UsageError("no cell of the first meets a cell of the second on their shared axes")
    return met


def _axes(folder: Path) -> Mapping[str, str]:
    return axes_of(require_lineage(folder).address)


def _measures(folder: Path) -> list[Measure]:
    lineage = require_lineage(folder)
    study = folder.parents[lineage.address.count("/")]
    inputs, metrics = _inputs(folder, lineage, study)
    return [measure for metric in metrics for measure in metric.measure(inputs)]


def _inputs(folder: Path, lineage: Lineage, study: Path) -> tuple[ScoreInputs, Sequence[AnyScore]]:
    if lineage.kind == "rollout":
        metrics = _METRICS.validate_python(list(_OF_ROLLOUTS))
        return _score_inputs(folder, lineage, study, ()), metrics
    if lineage.kind != "score":
        raise UsageError(
            f"`{folder}` is a {lineage.kind} cell", hint="compare two rollout or two score cells"
        )
    written = [{k: v for k, v in m.items() if k != "version"} for m in lineage.spec["metrics"]]
    reads: Mapping[str, Sequence[str]] = lineage.notes["reads"]
    own = _read(study, reads["rollouts"][0], reads.get("verdicts", ()))
    if reads.get("baseline_rollouts"):
        below = _read(study, reads["baseline_rollouts"][0], reads.get("baseline_verdicts", ()))
        own = replace(own, baseline=below)
    return own, _METRICS.validate_python(written)


def _read(study: Path, rollouts: str, verdicts: Sequence[str]) -> ScoreInputs:
    folder = study / rollouts
    return _score_inputs(folder, require_lineage(folder), study, [study / v for v in verdicts])


def _score_inputs(
    folder: Path, lineage: Lineage, study: Path, verdicts: Sequence[Path]
) -> ScoreInputs:
    questions = next(a for a in lineage.inputs if a.startswith("questions/"))
    benchmark = require_lineage(study / questions).spec["benchmark"]["kind"]
    rollouts = joined_with_questions(read_rows(folder, lineage), read_rows(study / questions))
    return ScoreInputs(
        rollouts=rollouts,
        benchmark=benchmark,
        verdicts=by_judge((require_lineage(path), read_rows(path)) for path in verdicts),
    )
