"""What a score reads, and what it returns: per-question columns and an estimator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import Scale
from mbt_cli.core.verifier import OfficialScorer, Verifier

Made = TypeVar("Made")

Means = Mapping[str, npt.NDArray[np.float64]]
"""Mean of each per-question column, one value per bootstrap resample, shape (resamples,)."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts of one judge on the rollouts of a cell.

    Args:
        rows: `rows.VERDICTS` with the judge's own columns, joined with rollouts by key.
        scale: The values that a verdict can take.
    """

    rows: pl.DataFrame
    scale: Scale


@dataclass(frozen=True, slots=True)
class ScoreInputs:
    """The data of one scored cell.

    Args:
        rollouts: `rows.ROLLOUTS` joined with the question's columns (not `context`), and `no_text`:
            the kind of a reply that came without usable text (`rows.replies_without_text`). It is
            wrong; only what never came has a `failure`, and no value.
        verifier: The benchmark's own: decides whether a reply is right.
        verdicts: What a judge measures (`Judge.quantity`) to its verdicts on these rollouts.
        judges: Every judge's verdicts, by what they measure and by the name of the judge model, for
            scores that compare judges; empty where one judge is looked at.
        human: `question_id`, `sample` and `label` of the answers that humans judged; None without
            labels.
        baseline: The same for the baseline cell, on the same benchmark and split.
        official: How the benchmark's own scorer compares words, if it does.
        made: Results that scores of this cell share, see `once`.
    """

    rollouts: pl.DataFrame
    verifier: Verifier
    verdicts: Mapping[str, Verdicts] = field(default_factory=dict)
    judges: Mapping[tuple[str, str], Verdicts] = field(default_factory=dict)
    human: pl.DataFrame | None = None
    baseline: "ScoreInputs | None" = None
    official: OfficialScorer | None = None
    # not an argument: a copy with other rows must not share these results
    made: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """The result of `make`, computed on the first call with `name` and kept for later ones."""
        if name not in self.made:
            self.made[name] = make()
        return cast(Made, self.made[name])


JUDGED_BY = ":"
"""Between the name of a metric and the judge model, where several judge models gave verdicts."""


def mean_of_value(means: Means) -> npt.NDArray[np.float64]:
    """The estimator of most measures: the mean over questions of the column `value`."""
    return means["value"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric of one cell.

    Args:
        metric: Its name in tables, such as `exact_match` or `pass@4`.
        unit: `percent`, `tokens`, `share`, `index`, ... (`percent`: values 0..1, shown x 100).
        questions: One row per question: `question_id`, `n`, `failed`, and one or more float
            columns; `rows.SCORES` keeps `value`. Null where every sample failed.
        estimate: Means of those columns to the number; called with the means of bootstrap
            resamples as arrays.
        settings: What a reader needs to recompute it, such as constants.
        binary: Values are 0 or 1 per sample, so that the number is a share and has Wilson's
            interval.
        by_log: The number is a positive ratio, and its interval that of its logarithm.
        items: The columns with the right items of each question and with all of them, where the
            number is their share, as of instructions: its interval is Wilson's, with a question's
            items as a cluster.
        values: One value per rollout, in the order of the rollouts, NaN for no value; the column
            `value` is their mean over each question's samples. None if samples have no value.
        interval: Computes low and high of the 95 % interval, or why there is none, if the score
            does that itself: from the number of the cluster of each question that has a value, in
            the order of their ids, or None if questions are independent.
    """

    metric: str
    unit: str
    questions: pl.DataFrame
    estimate: Callable[[Means], npt.NDArray[np.float64]] = mean_of_value
    settings: Mapping[str, Json] = field(default_factory=dict)
    binary: bool = False
    by_log: bool = False
    items: tuple[str, str] | None = None
    values: npt.NDArray[np.float64] | None = None
    interval: Callable[[npt.NDArray[np.int64] | None], tuple[float, float] | str] | None = None


CLUSTER = "cluster"
"""Column of `Measure.questions` with the name of each question's cluster, where there are some."""


@dataclass(frozen=True, slots=True)
class QuestionClusters:
    """The clusters that the questions of a cell come in, such as the document they are about.

    Args:
        column: Where the manifest takes them from.
        names: `question_id` and `cluster`, one row per question.
    """

    column: str
    names: pl.DataFrame

    def on(self, measure: Measure) -> Measure:
        """The measure, whose intervals and tests count clusters."""
        questions = measure.questions.join(
            self.names, on="question_id", how="left", maintain_order="left"
        )
        settings = {**measure.settings, CLUSTER: self.column}
        return replace(measure, questions=questions, settings=settings)


BREAKDOWNS = ("difficulty", "hops", "question_type")
"""Columns of questions by whose values metrics are broken down, besides those of the metadata."""
METADATA = "metadata."
"""Before the key of a record's other fields in the name of a column of questions."""


def _breakdown(name: str) -> str:
    if name in BREAKDOWNS or (name.startswith(METADATA) and name != METADATA):
        return name
    near = get_close_matches(name, BREAKDOWNS, n=1, cutoff=0.5)
    near = near or [f"{METADATA}{name.removeprefix('metadata').lstrip('.') or 'KEY'}"]
    raise PydanticCustomError(
        "breakdown",
        "must be `metadata.KEY`, `difficulty`, `hops` or `question_type`; did you mean `{near}`?",
        {"near": near[0]},
    )


Breakdown = Annotated[str, AfterValidator(_breakdown)]
"""A column of the questions by which metrics are broken down."""
