"""Score: numbers with their intervals, failures and differences from a baseline."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.chat import Json
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.errors import StageError
from mbt_cli.registry import AnyScore
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.stages.base import InputRule, Resolution, Stage, StageInput, Work
from mbt_cli.stages.inputs import by_judge, with_questions

_BASELINE = "baseline_"
EMBEDDED = "smollm2-135m"
"""The model that mbt brings along: small enough to run anywhere, too small to trust."""


class ScoreStage(Stage):
    """Compute every metric of one cell of rollouts."""

    version: ClassVar[int] = 2
    kind: Literal["score"] = "score"
    rollouts: StageInput
    """Rollout stages that are scored."""
    verdicts: StageInput | None = None
    """Judge stages whose verdicts on these rollouts are used."""
    baseline: dict[str, str] | None = None
    """Axes that lead from a cell to the one it is compared with."""
    metrics: list[AnyScore] = Field(min_length=1)
    """What is computed: names, or tables with a name's settings."""
    by: list[Literal["difficulty", "hops", "question_type"]] = Field(default_factory=list)
    """Columns of the questions by which every metric is broken down."""
    resamples: int = Field(default=2_000, ge=100)
    """Bootstrap resamples of an interval."""

    summary: ClassVar[str] = "compute metrics with intervals and paired differences"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "rollouts": InputRule(kinds=("rollout",), leading=True),
        "verdicts": InputRule(kinds=("judge",), many=True, same_rollouts=True),
    }
    reads_questions: ClassVar[bool] = True

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.SCORES

    def problems(self, read: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        for number, metric in enumerate(self.metrics):
            judges = sorted({*metric.needs()} - {"baseline"})
            if judges and self.verdicts is None:
                what = f"`{metric.kind}` needs verdicts of the judge `{judges[0]}`"
                yield f"metrics.{number}", f"{what}: name a judge stage in `verdicts`"
            if "baseline" in metric.needs() and self.baseline is None:
                what = f"`{metric.kind}` compares with a baseline"
                yield f"metrics.{number}", f"{what}: say `baseline = {{ AXIS = VALUE }}`"

    def uses_verifier(self, resolution: Resolution) -> bool:
        return any(metric.uses_verifier for metric in self.metrics)

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        own = _score_inputs(work, "")
        if own is None:
            raise StageError("a score cell has no rollouts")
        baseline = _score_inputs(work, _BASELINE)
        read = work.resolution.inputs
        is_baseline = read["rollouts"] == read.get(f"{_BASELINE}rollouts")
        settings = _Summing(self.metrics, self.resamples, work.resolution.seed, is_baseline)
        own = replace(own, baseline=baseline)
        summaries = list(settings.summaries(own, None, None))
        for by in self.by:
            for group in own.rollouts[by].drop_nulls().unique().sort():
                summaries.extend(settings.summaries(_only(own, by, group), by, str(group)))
        pl.DataFrame(summaries, schema=rows.SUMMARY).write_parquet(work.files / "summary.parquet")
        work.outcome.notes.update(_models_behind(work))
        work.outcome.notes["reads"] = {k: list(v) for k, v in work.resolution.inputs.items()}
        for measure in _measures(self.metrics, own):
            yield _score_rows(measure)


@dataclass(frozen=True)
class _Summing:
    metrics: Sequence[AnyScore]
    resamples: int
    seed: int
    is_baseline: bool
    """Whether the cell is what it would be compared with; then it has no difference."""

    def summaries(
        self, inputs: ScoreInputs, by: str | None, group: str | None
    ) -> Iterator[Mapping[str, Any]]:
        """Rows of `rows.SUMMARY`, each metric against the same metric of the baseline."""
        below = {}
        if inputs.baseline is not None and not self.is_baseline:
            below = {m.metric: m for m in _measures(self.metrics, inputs.baseline)}
        pairs = [(m, below.get(m.metric)) for m in _measures(self.metrics, inputs)]
        for row in summarise_all(pairs, resamples=self.resamples, seed=self.seed):
            yield {**row, "by": by, "group": group}


def _score_inputs(work: Work, prefix: str) -> ScoreInputs | None:
    if not work.inputs.get(f"{prefix}rollouts") or work.resolution.benchmark is None:
        return None
    return ScoreInputs(
        rollouts=with_questions(work, f"{prefix}rollouts"),
        verifier=work.resolution.benchmark.verifier,
        official=work.resolution.benchmark.official,
        verdicts=by_judge(
            (cell.lineage, cell.rows)
            for cell in work.inputs.get(f"{prefix}verdicts", ())
            if cell.lineage is not None
        ),
    )


def _models_behind(work: Work) -> dict[str, Json]:
    """Which models answered and judged, and what each of them is, for a table's notes."""
    asked = [cell.lineage.model or {} for cell in work.inputs["rollouts"] if cell.lineage]
    judged = [cell.lineage.model or {} for cell in work.inputs.get("verdicts", ()) if cell.lineage]
    return {
        "models": {str(m.get("name")): _nature(m.get("backend") or {}) for m in asked + judged},
        "judge_models": sorted({str(m.get("name")) for m in judged}),
    }


def _nature(backend: Mapping[str, Json]) -> str:
    """`scripted`, `canned` and `embedded` backends are no models to draw conclusions from."""
    kind = str(backend.get("kind"))
    embedded = kind == "llamacpp" and backend.get("model") == EMBEDDED
    return "embedded" if embedded else kind


def _measures(metrics: Sequence[AnyScore], inputs: ScoreInputs) -> list[Measure]:
    return [measure for metric in metrics for measure in metric.measure(inputs)]


def _only(inputs: ScoreInputs, by: str, group: object) -> ScoreInputs:
    """The same inputs for the questions of one group, the baseline's too."""
    rollouts = inputs.rollouts.filter(pl.col(by) == group)
    ids = rollouts.select("question_id").unique()
    verdicts = {
        judge: frame.join(ids, on="question_id", how="semi")
        for judge, frame in inputs.verdicts.items()
    }
    baseline = None if inputs.baseline is None else _only(inputs.baseline, by, group)
    return replace(inputs, rollouts=rollouts, verdicts=verdicts, baseline=baseline)


def _score_rows(measure: Measure) -> pl.DataFrame:
    questions = measure.questions
    value = pl.col("value") if "value" in questions.columns else pl.lit(None, pl.Float64)
    return questions.select(
        "question_id",
        pl.lit(measure.metric).alias("metric"),
        value.cast(pl.Float64).alias("value"),
        pl.col("n").cast(pl.Int64),
        pl.col("failed").cast(pl.Int64),
    )
