"""What scores have in common: one pass over a cell's rows, shared by all that ask."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.measures import Measure, ScoreInputs
from mbt_cli.core.samples import Samples, Values, samples_of
from mbt_cli.core.traces import cut_column, trace_column
from mbt_cli.scores.votes import Voted, majority
from mbt_cli.verifiers.frames import answer_metrics, normalised
from mbt_cli.verifiers.math import math_right


def samples(inputs: ScoreInputs) -> Samples:
    """Which question and sample each rollout is; StageError when two rows are the same one."""
    return inputs.once("samples", lambda: samples_of(inputs.rollouts))


def answer_values(inputs: ScoreInputs, column: str) -> Values:
    """A column of `answer_metrics`, one value per rollout, NaN where it failed."""
    return answer_frame(inputs)[column].to_numpy()


def answer_frame(inputs: ScoreInputs) -> pl.DataFrame:
    """`answer_metrics` of the cell's rollouts."""
    question = samples(inputs).question
    return inputs.once(
        "answer_metrics",
        lambda: answer_metrics(inputs.rollouts, inputs.benchmark, question=question),
    )


def rollout_values(inputs: ScoreInputs, expression: pl.Expr) -> Values:
    """A numeric or Boolean expression over the rollouts, NaN where null or the rollout failed."""
    live = pl.when(pl.col("failure").is_null()).then(expression.cast(pl.Float64))
    return inputs.rollouts.select(live.fill_null(np.nan)).to_series().to_numpy()


def correct_votes(inputs: ScoreInputs) -> Voted | None:
    """Whether the answer judge found each rollout correct; None when it was not asked."""
    verdicts = inputs.verdicts.get("answer_match")
    if verdicts is None:
        return None
    is_correct = pl.col("grade") == "A"
    return inputs.once("answer_match", lambda: majority(inputs.rollouts, verdicts, is_correct))


SampleCounts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
"""Values of k, each at least 1."""

Accuracy = Literal[
    "judge_accuracy",
    "exact_match",
    "substring_match",
    "f1_score",
    "containment",
    "official_exact_match",
    "official_f1",
    "math_match",
]
"""Which measure a score takes for being right."""


def judges_behind(accuracy: Accuracy) -> Collection[str]:
    """Kinds of judges that a measure of being right needs."""
    return ("answer_match",) if accuracy == "judge_accuracy" else ()


def accuracy_values(inputs: ScoreInputs, accuracy: Accuracy) -> Values | None:
    """How right each rollout is, in [0, 1]; None when the judge that says it was not asked."""
    if accuracy == "math_match":
        return math_values(inputs)
    if accuracy != "judge_accuracy":
        return answer_values(inputs, accuracy)
    votes = correct_votes(inputs)
    return None if votes is None else live_only(inputs, votes.value)


def math_values(inputs: ScoreInputs) -> Values:
    """1 or 0 for each rollout's math answer, NaN where the rollout failed; worked out once."""

    def values() -> Values:
        return live_only(inputs, math_right(inputs.rollouts, inputs.benchmark).to_numpy())

    return inputs.once("math_match", values)


def live_only(inputs: ScoreInputs, values: Values) -> Values:
    """The values with NaN where the rollout itself failed."""
    return np.where(samples(inputs).failed, np.nan, values)


def mean_measure(
    inputs: ScoreInputs,
    metric: str,
    values: Values,
    *,
    unit: str = "percent",
    shape: Literal["number", "binary", "share"] = "number",
    settings: Mapping[str, Json] | None = None,
) -> Measure:
    """The mean over questions of the mean over samples.

    Args:
        inputs: The cell.
        metric: Name of the number in tables.
        values: One value per rollout, NaN where it has none.
        unit: Of the values; `percent` values are in [0, 1].
        shape: `binary` for 0 / 1 values (McNemar fits), `share` for those whose interval is
            Wilson's, `number` for the rest.
        settings: What a reader must know to recompute it.
    """
    return Measure(
        metric=metric,
        unit=unit,
        questions=samples(inputs).per_question({"value": values}),
        settings=settings or {},
        binary=shape != "number",
        interval="wilson" if shape == "share" else "bootstrap",
    )


def at_k_name(name: str, k: int, of: Accuracy) -> str:
    """Name of a number over k samples: `pass@4`; `f1_score_avg@4` for another measure's.

    Example:
        >>> at_k_name("pass", 4, "exact_match"), at_k_name("avg", 4, "f1_score")
        ('pass@4', 'f1_score_avg@4')
    """
    return f"{name}@{k}" if of == "exact_match" else f"{of}_{name}@{k}"


def question_measure(
    inputs: ScoreInputs,
    metric: str,
    values: Values,
    *,
    scores: Values,
    among: npt.NDArray[np.bool_],
    of: Accuracy,
) -> Measure:
    """The mean over questions of a number that is made per question, in per cent.

    Args:
        inputs: The cell.
        metric: Name of the number in tables.
        values: One value per question, shape (questions,), NaN where it has none.
        scores: What the number is made of: one score per rollout, NaN where it has none.
        among: Which rollouts were looked at; `n` and `failed` count those.
        of: The measure behind the scores.
    """
    rows = samples(inputs)
    counted = np.bincount(rows.question[among & ~np.isnan(scores)], minlength=len(rows.ids))
    looked_at = np.bincount(rows.question[among], minlength=len(rows.ids))
    questions = {"question_id": rows.ids, "n": counted, "failed": looked_at - counted}
    value = pl.Series("value", values).fill_nan(None)
    return Measure(
        metric=metric,
        unit="percent",
        questions=pl.DataFrame(questions).with_columns(value),
        settings={"of": of},
    )


def beside_baseline(
    inputs: ScoreInputs,
    own: Mapping[str, Values],
    baseline: Mapping[str, Values],
    *,
    counted: str,
) -> pl.DataFrame:
    """One row per question that both cells have: own columns, and the baseline's as `base_X`.

    A question enters only with all its columns: the two sides are means over the same questions.

    Args:
        inputs: The cell; its `baseline` must be there.
        own: Column to one value per rollout of the cell.
        baseline: The same for the baseline's rollouts.
        counted: The own column whose values `n` and `failed` count.
    """
    assert inputs.baseline is not None
    base = samples(inputs.baseline).per_question(baseline, counted=counted)
    base = base.drop("n", "failed").rename({name: f"base_{name}" for name in baseline})
    both = samples(inputs).per_question(own, counted=counted)
    both = both.join(base, on="question_id", how="left", maintain_order="left")
    values = [*own, *(f"base_{name}" for name in baseline)]
    whole = pl.all_horizontal(pl.col(values).is_not_null())
    return both.with_columns(pl.when(whole).then(pl.col(values)))


def mean_over_questions(inputs: ScoreInputs, values: Values) -> float | None:
    """Mean over questions of the mean over samples; None where nothing has a value or it is 0."""
    column = samples(inputs).per_question({"value": values})["value"].drop_nulls().to_numpy()
    mean = float(np.mean(column)) if len(column) else 0.0
    return mean or None


_ROWS_AT_ONCE = 2_000  # traces are long; this bounds memory


@dataclass(frozen=True, slots=True)
class TraceHits:
    """1 where a reference occurs in the trace, else 0; shape (rows,).

    Args:
        substring: As a run of characters of the normalised trace, the paper's way: `no` is found
            in `norway`, and a reference that normalises to nothing is found in every trace that
            has any text.
        words: As whole words, side by side and in order.
    """

    substring: Values
    words: Values


def trace_hits(rollouts: pl.DataFrame) -> TraceHits:
    """Look for gold answer and aliases in each rollout's trace.

    Args:
        rollouts: `reasoning`, `reply`, `gold_answer`, `gold_aliases`.
    """
    slices = [_hits(piece) for piece in rollouts.iter_slices(_ROWS_AT_ONCE)]
    found = pl.concat(slices) if slices else _hits(rollouts)
    return TraceHits(found["substring"].to_numpy(), found["words"].to_numpy())


def _hits(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Columns `substring` and `words` (0 or 1), rows in the order of the input."""
    references = pl.concat_list(pl.col("gold_answer").fill_null(""), pl.col("gold_aliases"))
    fallback = pl.concat_list(pl.col("gold_answer").fill_null(""))
    rows = rollouts.select(
        trace_column(), reference=pl.coalesce(references, fallback).list.drop_nulls()
    ).with_row_index("row")
    rows = rows.with_columns(trace=normalised(rows["trace"]))
    pairs = rows.explode("reference")
    pairs = pairs.with_columns(reference=normalised(pairs["reference"]))
    trace, wanted = pl.col("trace"), pl.col("reference")
    padded = pl.concat_str(pl.lit(" "), trace, pl.lit(" "))
    word = pl.concat_str(pl.lit(" "), wanted, pl.lit(" "))
    hits = pairs.select(
        "row",
        substring=(trace != "") & trace.str.contains(wanted, literal=True),
        words=(wanted != "") & padded.str.contains(word, literal=True),
    )
    best = hits.group_by("row", maintain_order=True).agg(
        pl.col("substring", "words").max().cast(pl.Float64)
    )
    return best.select(pl.col("substring", "words").fill_null(np.nan))


def judged_hits(inputs: ScoreInputs) -> Voted | None:
    """Votes of the judge `answer_hit`; None when it was not asked.

    A cut reply was not judged (its `hit` is null without a failure): it counts as no hit, so every
    share made of this is a lower bound.
    """
    verdicts = inputs.verdicts.get("answer_hit")
    if verdicts is None:
        return None
    says_hit = pl.col("hit").fill_null(False)
    return inputs.once("answer_hit", lambda: majority(inputs.rollouts, verdicts, says_hit))


def free_hits(inputs: ScoreInputs) -> TraceHits:
    """Hits found by looking for the gold answer in the trace; NaN where the rollout failed."""

    def looked_for() -> TraceHits:
        hits = trace_hits(inputs.rollouts)
        return TraceHits(live_only(inputs, hits.substring), live_only(inputs, hits.words))

    return inputs.once("trace_hits", looked_for)


def cut_values(inputs: ScoreInputs) -> Values:
    """1 where the reply was cut, 0 where it was not, NaN where the rollout failed."""
    return rollout_values(inputs, cut_column())


def unjudgeable_values(inputs: ScoreInputs) -> Values:
    """1 where the reply was cut or has no trace, 0 where it has one, NaN where it failed."""
    return rollout_values(inputs, cut_column() | (trace_column() == ""))
