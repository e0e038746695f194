"""Compare two cells: paired differences of metrics, or the agreement of two judges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl
from pydantic import TypeAdapter

from mbt_cli.core.addresses import axes_of
from mbt_cli.core.judge_scales import Scale
from mbt_cli.core.measures import CLUSTER, Measure, QuestionClusters, ScoreInputs
from mbt_cli.errors import UsageError
from mbt_cli.plugins import benchmark_of, judge_of
from mbt_cli.registry import AnyScore
from mbt_cli.scores.agreement import kappa_measure
from mbt_cli.scores.comparison import Comparison, Margins, compare, compare_numbers
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.scores.votes import both_parsed, confusion, paired_votes
from mbt_cli.stages.inputs import as_scored, joined_with_questions
from mbt_cli.stages.score import JudgedCell, judge_views, measures, verdicts_by_judge
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.reading import read_parquet_file, read_rows, require_lineage

_METRICS: TypeAdapter[list[AnyScore]] = TypeAdapter(list[AnyScore])
_RESAMPLES = 10_000
_HARNESS = "harness"
_SUMMARY = "files/summary.parquet"
_OF_ROLLOUTS = ("exact_match", "f1_score", "answer_rate", "degeneration", "tokens")


def pairs(first: Sequence[Path], second: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Pairs of cells from two sets: equal on every axis on which the sets have a value in common.

    Their stage counts as an axis.

    Raises:
        UsageError: No pair matches.
    """
    ours = {folder: _axes_with_stage(folder) for folder in first}
    theirs = {folder: _axes_with_stage(folder) for folder in second}
    names = {axis for axes in (*ours.values(), *theirs.values()) for axis in axes}
    shared = [
        axis
        for axis in sorted(names)
        if {a.get(axis) for a in ours.values()} & {a.get(axis) for a in theirs.values()}
    ]
    found = [
        (left, right)
        for left, left_axes in ours.items()
        for right, right_axes in theirs.items()
        if all(left_axes.get(a) == right_axes.get(a) for a in shared)
    ]
    if not found:
        raise UsageError("no cell of the first set matches a cell of the second on shared axes")
    return found


def _axes_with_stage(folder: Path) -> dict[str, str]:
    address = require_lineage(folder).address
    return {"": address.partition("/")[0], **axes_of(address)}


def compared(
    first: Path, second: Path, *, resamples: int | None, seed: int | None, margins: Margins
) -> Comparison:
    """Compare two rollout or score cells, metric by metric, paired by question.

    Two cells of harnesses are compared by their numbers, whose questions are not known.

    Args:
        first: Folder of a finished cell.
        second: Folder of another cell of the same kind.
        resamples: Bootstrap resamples; None for those of the first cell, so that the numbers are
            those of tables, or 10,000 if it has no scores.
        seed: The same seed gives the same intervals; None for the study's.
        margins: Metrics with a margin are tested for equivalence.

    Raises:
        UsageError: The cells are not rollout or score cells, or a metric with a margin of its own
            is not in both.
        MissingInputError: A cell, or one of its inputs, does not exist.
    """
    return _compared([(first, second)], resamples, seed, margins)


def pooled(
    matched: Sequence[tuple[Path, Path]],
    *,
    resamples: int | None,
    seed: int | None,
    margins: Margins,
) -> Comparison:
    """Compare two methods over several pairs of cells, such as one for each benchmark.

    Every question counts once in every pair: the numbers are means over all of them, so that a
    benchmark with more questions weighs more. A question that stands in several pairs, as with
    several seeds, is one cluster of the intervals and tests. Metrics that a pair lacks are left
    out; the arguments are those of `compared`.
    """
    return _compared(matched, resamples, seed, margins)


def _compared(
    matched: Sequence[tuple[Path, Path]],
    resamples: int | None,
    seed: int | None,
    margins: Margins,
) -> Comparison:
    kinds = {require_lineage(folder).kind for pair in matched for folder in pair}
    spec = require_lineage(matched[0][0]).spec
    if kinds == {_HARNESS}:
        if len(matched) > 1:
            raise UsageError(
                "the questions of harnesses are not known, so their cells cannot be pooled",
                hint="leave out `--pool`: each pair is compared",
            )
        if margins.common is not None or margins.own:
            raise UsageError(
                "`--equivalent` needs the questions of both cells, and those of harnesses are not "
                "known",
                hint="leave it out",
            )
        found = compare_numbers(*map(_numbers, matched[0]))
    else:
        found = compare(
            _pooled([first for first, _ in matched]),
            _pooled([second for _, second in matched]),
            resamples=resamples or spec.get("resamples", _RESAMPLES),
            seed=spec.get("seed", 0) if seed is None else seed,
            margins=margins,
        )
    known = found.metrics["metric"].to_list()
    if unknown := [name for name in margins.own if name not in known]:
        raise UsageError(
            f"`--equivalent {unknown[0]}=...`: the two cells have no metric `{unknown[0]}`",
            hint=f"they have {', '.join(f'`{name}`' for name in known)}",
        )
    return found


def _numbers(folder: Path) -> pl.DataFrame:
    return read_parquet_file(folder, _SUMMARY, require_lineage(folder)).collect()


def _pooled(folders: Sequence[Path]) -> list[Measure]:
    """The measures of a cell, or those that all cells have over the questions of all."""
    if len(folders) == 1:
        return _measures(folders[0])
    parts: dict[str, list[Measure]] = {}
    for number, folder in enumerate(folders):
        axes = axes_of(require_lineage(folder).address)
        asked = "/".join(axes.get(axis, "") for axis in ("benchmark", "split"))
        for measure in _measures(folder):
            unit = CLUSTER if CLUSTER in measure.questions.columns else "question_id"
            questions = measure.questions.with_columns(
                pl.format("{}/{}", pl.lit(number), "question_id").alias("question_id"),
                pl.format("{}/{}", pl.lit(asked), unit).alias(CLUSTER),
            )
            # neither samples nor an interval of a single cell hold for all of them
            part = replace(measure, questions=questions, values=None, interval=None)
            parts.setdefault(measure.metric, []).append(part)
    return [_joined(own) for own in parts.values() if len(own) == len(folders)]


def _joined(parts: Sequence[Measure]) -> Measure:
    questions = pl.concat([part.questions for part in parts], how="diagonal")
    if questions[CLUSTER].n_unique() == questions.height:
        questions = questions.drop(CLUSTER)  # every question is independent
    return replace(parts[0], questions=questions, binary=all(part.binary for part in parts))


def _measures(folder: Path) -> list[Measure]:
    lineage = require_lineage(folder)
    study = folder.parents[lineage.address.count("/")]
    if lineage.kind == "rollout":
        metrics = _METRICS.validate_python(list(_OF_ROLLOUTS))
        return measures(metrics, judge_views(_judged_cell(study, lineage.address, ()), None))
    if lineage.kind != "score":
        raise UsageError(
            f"`{folder}` is a {lineage.kind} cell",
            hint="compare two rollout, two score or two harness cells",
        )
    # a metric from a file of the study is left out: only its manifest knows where the file is
    written = [
        {k: v for k, v in metric.items() if k != "version"}
        for metric in lineage.spec["metrics"]
        if "file_sha256" not in metric
    ]
    reads: Mapping[str, Sequence[str]] = lineage.notes["reads"]
    own = _judged_cell(study, reads["rollouts"][0], reads.get("verdicts", ()))
    baseline = None
    if reads.get("baseline_rollouts"):
        verdicts = reads.get("baseline_verdicts", ())
        baseline = _judged_cell(study, reads["baseline_rollouts"][0], verdicts)
    clusters = None
    if CLUSTER in (scores := read_rows(folder, lineage)).collect_schema():
        names = scores.select("question_id", CLUSTER).unique().collect()
        clusters = QuestionClusters("", names)
    return measures(_METRICS.validate_python(written), judge_views(own, baseline), clusters)


def _judged_cell(study: Path, rollouts: str, verdicts: Sequence[str]) -> JudgedCell:
    lineage = require_lineage(study / rollouts)
    questions = next(a for a in lineage.inputs if a.startswith("questions/"))
    benchmark = benchmark_of(require_lineage(study / questions).spec)
    joined = joined_with_questions(
        read_rows(study / rollouts, lineage), read_rows(study / questions)
    )
    scored = as_scored(joined)
    inputs = ScoreInputs(scored, benchmark.verifier, official=benchmark.official)
    folders = [study / address for address in verdicts]
    judged = [(require_lineage(folder), read_rows(folder)) for folder in folders]
    return inputs, verdicts_by_judge(judged, scored)


@dataclass(frozen=True)
class JudgeAgreement:
    """Agreement of two judges on the same rollouts.

    Args:
        scale: The scale of both judges.
        kappa: Cohen's kappa over the votes that both parsed, a row of `rows.SUMMARY` with its 95 %
            interval over questions; `settings` has the weights, and why a number is missing.
        parsed: Number of those votes.
        same: Number of those votes on which the judges agree.
        table: `first`, `second`, `count`, see `scores.votes.confusion`.
    """

    scale: Scale
    kappa: Mapping[str, Any]
    parsed: int
    same: int
    table: pl.DataFrame

    @property
    def settings(self) -> Mapping[str, Any]:
        """How kappa was computed."""
        found: Mapping[str, Any] = orjson.loads(self.kappa["settings"])
        return found


def are_verdicts(first: Path, second: Path) -> bool:
    """Whether both are judge cells."""
    return require_lineage(first).kind == require_lineage(second).kind == "judge"


def agreement(
    first: Path, second: Path, *, resamples: int | None, seed: int | None
) -> JudgeAgreement:
    """Cohen's kappa and the confusion table of two judge cells.

    Args:
        first: Folder of a judge cell.
        second: Folder of another one on the same rollouts.
        resamples: Bootstrap resamples; None for 10,000.
        seed: The same seed gives the same interval; None for the study's.

    Raises:
        UsageError: The judges have different scales, or no rollout with two parsed verdicts.
        MissingInputError: A cell does not exist.
    """
    lineages = [require_lineage(folder) for folder in (first, second)]
    scale, other = (_scale(lineage) for lineage in lineages)
    if scale != other:
        raise UsageError(
            f"the verdicts of `{first}` are `{scale.column}`, those of `{second}` `{other.column}`",
            hint="compare two cells of the same judge",
        )
    left, right = (
        read_rows(folder, lineage)
        .select("question_id", "sample", "vote", scale.column, "failure")
        .collect()
        for folder, lineage in zip((first, second), lineages, strict=True)
    )
    pairs = paired_votes(left, right, scale.column)
    parsed = both_parsed(pairs)
    if parsed.is_empty():
        raise UsageError("no rollout has a parsed verdict of both judges")
    measure = kappa_measure("kappa", pairs, is_ordered=scale.is_ordered)
    (kappa,) = summarise_all(
        [(measure, None)],
        resamples=resamples or _RESAMPLES,
        seed=lineages[0].spec.get("seed", 0) if seed is None else seed,
    )
    same = int((parsed["first"] == parsed["second"]).sum())
    return JudgeAgreement(scale, kappa, parsed.height, same, confusion(pairs))


def _scale(lineage: Lineage) -> Scale:
    judge = judge_of(lineage.spec)
    if judge is None:
        raise UsageError(f"the judge `{lineage.spec['judge']['kind']}` is not installed")
    return judge.verdict_scale()
