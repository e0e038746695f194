"""Two judge cells over the same rollouts: how far the judges agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
from pydantic import TypeAdapter

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import benchmark_of
from mbt_cli.registry import JUDGES, AnyScore
from mbt_cli.scores.comparison import Comparison, compare
from mbt_cli.scores.votes import both_read, cohens_kappa, confusion
from mbt_cli.stages.inputs import by_judge, joined_with_questions
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
    # a metric from a file of the study is left out: only its manifest knows where the file is
    written = [
        {k: v for k, v in metric.items() if k != "version"}
        for metric in lineage.spec["metrics"]
        if "file_sha256" not in metric
    ]
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
    benchmark = benchmark_of(require_lineage(study / questions).spec)
    rollouts = joined_with_questions(read_rows(folder, lineage), read_rows(study / questions))
    return ScoreInputs(
        rollouts=rollouts,
        verifier=benchmark.verifier,
        official=benchmark.official,
        verdicts=by_judge((require_lineage(path), read_rows(path)) for path in verdicts),
    )


@dataclass(frozen=True)
class JudgeAgreement:
    """What two judges say of the same rollouts.

    Args:
        column: What they were compared on, such as `grade`.
        kappa: Cohen's kappa over what both could read; NaN where it is not defined.
        read: Verdicts that both could read.
        same: Of those, the ones on which they agree.
        table: `first`, `second`, `count`, as `core.agreement.confusion` gives it.
    """

    column: str
    kappa: float
    read: int
    same: int
    table: pl.DataFrame


def are_verdicts(first: Path, second: Path) -> bool:
    """Whether both are judge cells."""
    return require_lineage(first).kind == require_lineage(second).kind == "judge"


def agreement(first: Path, second: Path) -> JudgeAgreement:
    """Cohen's kappa and the confusion table of two judge cells.

    Raises:
        UsageError: The two gave verdicts of other kinds, or on no rollout in common.
        MissingInputError: One of them is not there.
    """
    lineages = [require_lineage(folder) for folder in (first, second)]
    columns = [_compared_column(lineage) for lineage in lineages]
    if columns[0] != columns[1]:
        raise UsageError(
            f"`{first}` says `{columns[0]}`, `{second}` says `{columns[1]}`",
            hint="compare two cells of the same judge prompt",
        )
    said = [
        read_rows(folder, lineage)
        .select("question_id", "sample", "vote", columns[0], "failure")
        .collect()
        for folder, lineage in zip((first, second), lineages, strict=True)
    ]
    table = confusion(said[0], said[1], columns[0])
    both = both_read(table)
    if both.is_empty():
        raise UsageError("no rollout has a verdict that both judges gave and that can be read")
    same = both.filter(pl.col("first") == pl.col("second"))
    return JudgeAgreement(
        columns[0], cohens_kappa(table), int(both["count"].sum()), int(same["count"].sum()), table
    )


def _compared_column(lineage: Lineage) -> str:
    written = {k: v for k, v in lineage.spec["judge"].items() if k != "version"}
    if "file_sha256" in written:
        raise UsageError(f"the judge `{written['kind']}` is defined in a file of its study")
    return JUDGES.make(written).compared_column
