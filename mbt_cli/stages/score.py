"""Score: metrics with intervals, failure counts and differences from a baseline."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core import rows
from mbt_cli.core.addresses import axes_of
from mbt_cli.core.chat import Json
from mbt_cli.core.lineage_notes import NO_TEXT
from mbt_cli.core.measures import (
    CLUSTER,
    JUDGED_BY,
    METADATA,
    Breakdown,
    Measure,
    QuestionClusters,
    ScoreInputs,
    Verdicts,
)
from mbt_cli.core.names import nearest
from mbt_cli.core.plugin import AbsentByDefault, Grows, Plugin
from mbt_cli.core.traces import cut_column
from mbt_cli.core.verifier import Verifier
from mbt_cli.errors import StageError
from mbt_cli.interfaces import Judge, Score
from mbt_cli.plugins import judge_of
from mbt_cli.registry import BACKENDS, JUDGES, SCORES, AnyScore
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.stages.base import InputRule, Resolution, Stage, StageInput, Work
from mbt_cli.stages.inputs import (
    CLUSTER_COLUMNS,
    as_scored,
    question_clusters,
    with_breakdowns,
    with_questions,
)
from mbt_cli.stages.judge import seen_by_judge
from mbt_cli.stages.labels import label_file, labels_of_cell, labels_of_questions, read_labels
from mbt_cli.store.lineage import Lineage

_BASELINE = "baseline_"


class ScoreStage(Stage):
    """Compute every metric of one cell of rollouts."""

    version: ClassVar[int] = 5
    kind: Literal["score"] = "score"
    rollouts: StageInput
    """Rollout stages to score. Default: all before this one."""
    verdicts: StageInput | None = None
    """Judge stages with verdicts on these rollouts."""
    baseline: dict[str, str] | None = None
    """Axis values that lead from a cell to its baseline."""
    human: Annotated[str | None, AbsentByDefault] = None
    """Human verdicts on answers, for the metric `judge_agreement`: a file (.csv, .jsonl, .parquet)
    with the columns `question_id`, `sample`, `label` (`1` or `0`, `right` or `wrong`, or a value of
    the judge's scale; empty: not labelled) and the axes in which the stage's cells differ, such as
    `model`; or `metadata.KEY`, one verdict per question in the benchmark's metadata."""
    metrics: Annotated[list[AnyScore], Grows] = Field(min_length=1)
    """Metrics to compute: names, or tables with settings. Default: exact match and F1, or
    `math_match` for math, with the answer rate and tokens."""
    by: list[Breakdown] = Field(default_factory=list)
    """Columns of the questions to break every metric down by: `difficulty`, `hops`,
    `question_type`, or `metadata.KEY`, such as `metadata.level`."""
    resamples: int = Field(default=2_000, ge=100)
    """Number of bootstrap resamples."""
    cluster: Annotated[str | dict[str, str] | None, AbsentByDefault] = None
    """Column of the questions that says which belong together, such as `metadata.document`, or a
    table of benchmark to column. Intervals and tests then count these clusters, not questions."""

    summary: ClassVar[str] = "compute metrics with intervals and paired differences"
    axes: ClassVar[tuple[str, ...]] = ("benchmark", "split")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "rollouts": InputRule(kinds=("rollout",), leading=True),
        "verdicts": InputRule(kinds=("judge",), many=True, same_rollouts=True),
    }
    reads_questions: ClassVar[bool] = True
    verifiers_by_member: ClassVar[bool] = True

    def columns(self, resolution: Resolution) -> pl.Schema:
        more = {CLUSTER: pl.String()} if self.cluster_column(resolution.axes) else {}
        return pl.Schema({**rows.SCORES, **more})

    def cluster_column(self, axes: Mapping[str, str]) -> str | None:
        """Where the clusters of a cell's questions are; None if questions are independent."""
        if isinstance(self.cluster, str):
            return self.cluster
        return (self.cluster or {}).get(axes.get("benchmark", ""))

    def problems(self, read: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        table = {"cluster": self.cluster} if isinstance(self.cluster, str) else self.cluster or {}
        for key, column in table.items():
            if column not in CLUSTER_COLUMNS and not column.startswith(METADATA):
                known = [*CLUSTER_COLUMNS, f"{METADATA}KEY"]
                field = key if isinstance(self.cluster, str) else f"cluster.{key}"
                yield field, f"no column `{column}` of questions; {nearest(column, known)}"
        for number, metric in enumerate(self.metrics):
            if self.verdicts is None and (what := missing_judge(metric, ())) is not None:
                yield f"metrics.{number}", f"{what}: name a judge stage in `verdicts`"
            if "baseline" in metric.needs() and self.baseline is None:
                what = f"`{metric.kind}` compares with a baseline"
                yield f"metrics.{number}", f"{what}: add `baseline = {{ AXIS = VALUE }}`"
            if any(other.collides(metric) for other in self.metrics[:number]):
                what = f"`{metric.kind}` makes numbers of the same name as one before it"
                yield f"metrics.{number}", f"{what}: leave one out"
        if self.human is not None and not any(metric.reads_labels for metric in self.metrics):
            kinds = [kind for kind, metric in SCORES.kinds().items() if metric.reads_labels]
            yield "human", f"no metric reads it: add `{kinds[0]}` to `metrics`"

    def files_read(self) -> Mapping[str, Path]:
        path = label_file(self.human)
        return {} if path is None else {"human": path}

    def verifiers_used(self, own: Verifier, resolution: Resolution) -> Sequence[Verifier]:
        found = [verifier for m in self.metrics for verifier in self.verifiers_of(m, own)]
        return list(dict.fromkeys(found))

    def verifiers_of(self, member: Plugin, own: Verifier) -> Sequence[Verifier]:
        verifier = member.verifier(own) if isinstance(member, Score) else None
        return [] if verifier is None else [verifier]

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        own = _judged_cell(work, "", self.by)
        if own is None:
            raise StageError("a score cell has no rollouts")
        for verifier in self.verifiers_used(own[0].verifier, work.resolution):
            verifier.prepare()
        own = (replace(own[0], human=self._labels(work, own[0].rollouts)), own[1])
        read, seed = work.resolution.inputs, work.resolution.seed
        views = judge_views(own, _judged_cell(work, _BASELINE, self.by))
        is_baseline = read["rollouts"] == read.get(f"{_BASELINE}rollouts")
        clusters = None
        if column := self.cluster_column(work.resolution.axes):
            asked = own[0].rollouts["question_id"]
            where = work.input("questions").address
            clusters = question_clusters(work.lazy("questions"), column, asked, where)

        def summaries_of(views: JudgeViews) -> list[dict[str, Any]]:
            return self._summaries(views, clusters, seed, is_baseline=is_baseline)

        summaries = summaries_of(views)
        for by in self.by:
            for group in own[0].rollouts[by].drop_nulls().unique().sort():
                part = {model: _only(inputs, by, group) for model, inputs in views.items()}
                grouped = summaries_of(part)
                summaries += [{**row, "by": by, "group": str(group)} for row in grouped]
        pl.DataFrame(summaries, schema=rows.SUMMARY).write_parquet(work.files / "summary.parquet")
        found = measures(self.metrics, views, clusters)
        _sample_rows(found, own[0].rollouts).sink_parquet(work.files / rows.SAMPLES_FILE)
        work.result.notes.update(_models_behind(work))
        work.result.notes.update(_without_text(own[0].rollouts))
        work.result.notes["reads"] = {k: list(v) for k, v in read.items()}
        for measure in found:
            yield _score_rows(measure)

    def _labels(self, work: Work, rollouts: pl.DataFrame) -> pl.DataFrame | None:
        """The human labels of the cell, which are kept in its file `labels.parquet`."""
        if self.human is None:
            return None
        path = label_file(self.human)
        if path is None:
            labels = labels_of_questions(self.human, work.lazy("questions"), rollouts)
        else:
            labels = labels_of_cell(read_labels(path), work.resolution.axes)
        if labels.is_empty():
            work.progress.note(f"{work.resolution.address}: no label in `{self.human}` is for it")
        labels.write_parquet(work.files / "labels.parquet")
        return labels

    def _summaries(
        self,
        views: "JudgeViews",
        clusters: QuestionClusters | None,
        seed: int,
        *,
        is_baseline: bool,
    ) -> list[dict[str, Any]]:
        """Rows of `rows.SUMMARY`, with the difference from the baseline unless this is it."""
        below = {}
        baselines = {k: view.baseline for k, view in views.items() if view.baseline is not None}
        if baselines and not is_baseline:
            below = {m.metric: m for m in measures(self.metrics, baselines)}
        own = measures(self.metrics, views, clusters)
        pairs = [(m, below.get(m.metric)) for m in own]
        return summarise_all(pairs, resamples=self.resamples, seed=seed)


JudgedCell = tuple[ScoreInputs, Mapping[tuple[str, str], Verdicts]]
"""A cell without verdicts, and its verdicts by what they measure and by the judge model."""

JudgeViews = Mapping[str | None, ScoreInputs]
"""A cell with the verdicts of one judge model at a time.

If several judge models measured the same quantity, each has a view. The view None has all other
verdicts, and all judges side by side; it is the only one where there is no such choice."""


def judge_views(own: JudgedCell, baseline: JudgedCell | None) -> JudgeViews:
    """A cell and its baseline, once per judge model if there are several."""
    sides = [side for side in (own, baseline) if side is not None]
    shared = {
        quantity
        for _, verdicts in sides
        for quantity, count in Counter(quantity for quantity, _ in verdicts).items()
        if count > 1
    }
    models = {m: None for _, verdicts in sides for quantity, m in verdicts if quantity in shared}

    def view(side: JudgedCell, model: str | None) -> ScoreInputs:
        inputs, verdicts = side
        chosen = {q: v for (q, m), v in verdicts.items() if q not in shared or m == model}
        return replace(inputs, verdicts=chosen)

    views = {
        model: replace(view(own, model), baseline=baseline and view(baseline, model))
        for model in (None, *models)
    }
    return {**views, None: replace(views[None], judges=own[1])}


def measures(
    metrics: Sequence[AnyScore], views: JudgeViews, clusters: QuestionClusters | None = None
) -> list[Measure]:
    """Every measure of a cell; those that depend on the choice of a judge model, once per model.

    The name of the model follows the name of the metric, as in `judge_accuracy:gpt-oss-20b`.
    """
    found: dict[str, Measure] = {}
    said: set[str] = set()  # names that a metric gives, judge models apart
    for metric in metrics:
        common = metric.measure(views[None])
        names = {measure.metric for measure in common}
        if twice := sorted(names & said):
            raise StageError(
                f"two metrics are called `{twice[0]}`, and no table could tell them apart",
                hint="leave one of them out of `metrics`",
            )
        said |= names
        found |= {measure.metric: measure for measure in common}
        for model, inputs in views.items():
            for measure in () if model is None else metric.measure(inputs):
                name = f"{measure.metric}{JUDGED_BY}{model}"
                if measure.metric not in names and name not in found:
                    settings = {**measure.settings, "judge_model": model}
                    found[name] = replace(measure, metric=name, settings=settings)
    made = list(found.values())
    return made if clusters is None else [clusters.on(measure) for measure in made]


def verdicts_by_judge(
    cells: Iterable[tuple[Lineage, pl.LazyFrame]], rollouts: pl.DataFrame
) -> dict[tuple[str, str], Verdicts]:
    """Verdicts, without the messages, by what they measure and by the judge model.

    The name that the manifest gives a judge does not matter. Cells of judges that are not loaded
    are left out.

    Args:
        cells: Judge cells.
        rollouts: What they judge, from `as_scored`.

    Raises:
        StageError: Two cells have the same key.
    """
    found: dict[tuple[str, str], tuple[str, Verdicts]] = {}
    for lineage, frame in cells:
        judge = judge_of(lineage.spec)
        if judge is None:
            continue
        # verifiers ask no model: the names of their judges tell them apart
        name = (lineage.model or {}).get("name") or axes_of(lineage.address)["judge"]
        key = (judge.quantity, str(name))
        if key in found:
            raise StageError(
                f"`{found[key][0]}` and `{lineage.address}` are both verdicts of "
                f"`{judge.kind}` by the same model",
                hint="read one of them per score: "
                'verdicts = { stage = "...", where = { judge = "..." } }',
            )
        found_rows = with_definite(frame.drop("messages").collect(), judge, rollouts)
        found[key] = (lineage.address, Verdicts(found_rows, judge.verdict_scale()))
    return {key: verdicts for key, (_, verdicts) in found.items()}


def with_definite(verdicts: pl.DataFrame, judge: Judge, rollouts: pl.DataFrame) -> pl.DataFrame:
    """The verdicts, with those that hold by definition for replies without text or answer.

    Judge cells have a failure, or a verdict of a model, where the reply was empty, refused or
    filtered, or where its answer stood in thinking that was truncated.
    """
    key = ["question_id", "sample"]
    replaced = verdicts.filter(pl.col("asked") | pl.col("failure").is_not_null())
    has_none = pl.col("no_text").is_not_null() | (cut_column() & pl.col("answer").is_null())
    rows_without = rollouts.filter(has_none).join(replaced, on=key, how="semi")
    nothing = {"failure": None}
    definite = [
        {**{name: row[name] for name in key}, **verdict, **nothing}
        for row in rows_without.iter_rows(named=True)
        if (verdict := judge.verdict_without_model(seen_by_judge(row))) is not None
    ]
    if not definite:
        return verdicts
    schema = {name: verdicts.schema[name] for name in definite[0]}
    return verdicts.update(pl.DataFrame(definite, schema=schema), on=key, include_nulls=True)


def _judged_cell(work: Work, prefix: str, by: Sequence[str]) -> JudgedCell | None:
    if not work.inputs.get(f"{prefix}rollouts") or work.resolution.benchmark is None:
        return None
    benchmark = work.resolution.benchmark
    metadata = benchmark.verifier.reads_metadata
    rollouts = as_scored(with_questions(work, f"{prefix}rollouts", metadata=metadata))
    if by:
        where = work.input("questions").address
        rollouts = with_breakdowns(rollouts, work.lazy("questions"), by, where)
    inputs = ScoreInputs(
        rollouts=rollouts, verifier=benchmark.verifier, official=benchmark.official
    )
    judged = [
        (cell.lineage, cell.rows)
        for cell in work.inputs.get(f"{prefix}verdicts", ())
        if cell.lineage is not None
    ]
    return inputs, verdicts_by_judge(judged, rollouts)


def _without_text(rollouts: pl.DataFrame) -> dict[str, Json]:
    """How many replies came without usable text, for the notes of tables; empty if all have one."""
    kinds = dict(rollouts["no_text"].drop_nulls().value_counts().sort("no_text").iter_rows())
    return {NO_TEXT: {"replies": rollouts["failure"].null_count(), **kinds}} if kinds else {}


def missing_judge(metric: Score, judged: Collection[str]) -> str | None:
    """That a metric needs a judge of a quantity that is not among those judged; None if not."""
    quantities = [quantity for quantity in metric.needs() if quantity != "baseline"]
    needed = quantities if metric.needs_one else quantities[:1]
    if not needed or any(quantity in judged for quantity in needed):
        return None
    kinds = [kind for kind, judge in JUDGES.kinds().items() if judge.quantity in needed]
    judges = " or ".join(f"`{kind}`" for kind in kinds)
    return f"`{metric.kind}` needs verdicts of the judge {judges}"


def _models_behind(work: Work) -> dict[str, Json]:
    """The models that answered and judged, and what each of them is, for the notes of tables."""
    asked = [cell.lineage.model or {} for cell in work.inputs["rollouts"] if cell.lineage]
    judges = [cell.lineage for cell in work.inputs.get("verdicts", ()) if cell.lineage]
    judged = [lineage.model for lineage in judges if lineage.model]
    return {
        "models": {str(m.get("name")): _nature(m.get("backend") or {}) for m in asked + judged},
        "judge_models": sorted({str(m.get("name")) for m in judged}),
    }


def _nature(backend: Mapping[str, Json]) -> str:
    """The kind of a backend, or its label if it is a toy."""
    kind = str(backend.get("kind"))
    found = BACKENDS.find(kind)
    return found.toy_label if found is not None and found.is_toy(backend) else kind


def _only(inputs: ScoreInputs, by: str, group: object) -> ScoreInputs:
    """The same inputs for the questions of one group, for the baseline too."""
    rollouts = inputs.rollouts.filter(pl.col(by) == group)
    ids = rollouts.select("question_id").unique()

    def part(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.join(ids, on="question_id", how="semi", maintain_order="left")

    return replace(
        inputs,
        rollouts=rollouts,
        verdicts={k: replace(one, rows=part(one.rows)) for k, one in inputs.verdicts.items()},
        judges={k: replace(one, rows=part(one.rows)) for k, one in inputs.judges.items()},
        human=None if inputs.human is None else part(inputs.human),
        baseline=None if inputs.baseline is None else _only(inputs.baseline, by, group),
    )


def _sample_rows(found: Iterable[Measure], rollouts: pl.DataFrame) -> pl.LazyFrame:
    """`rows.SAMPLES`: the value of every sample, metric by metric in the order of the rollouts."""
    keys = rollouts.lazy().select("question_id", "sample")
    frames = [
        keys.with_columns(
            pl.lit(measure.metric).alias("metric"),
            pl.Series("value", measure.values, nan_to_null=True),
        ).cast(rows.SAMPLES)
        for measure in found
        if measure.values is not None
    ]
    return pl.concat([pl.LazyFrame(schema=rows.SAMPLES), *frames])


def _score_rows(measure: Measure) -> pl.DataFrame:
    questions = measure.questions
    value = pl.col("value") if "value" in questions.columns else pl.lit(None, pl.Float64)
    return questions.select(
        "question_id",
        pl.lit(measure.metric).alias("metric"),
        value.cast(pl.Float64).alias("value"),
        pl.col("n").cast(pl.Int64),
        pl.col("failed").cast(pl.Int64),
        *([CLUSTER] if CLUSTER in questions.columns else []),
    )
