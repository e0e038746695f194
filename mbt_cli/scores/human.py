"""Verdicts of a judge against those of humans, and the accuracy that both give together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import CORRECTNESS, Scale
from mbt_cli.core.measures import Means, Measure
from mbt_cli.scores.agreement import kappa_measure, share_measure
from mbt_cli.scores.samples import Values
from mbt_cli.scores.statistics import (
    Clusters,
    Floats,
    Interval,
    effective_clusters,
    effective_share_interval,
    per_cluster,
    t_tail,
)

FEWEST_LABELLED = 10
"""Labelled questions below which the corrected accuracy has no interval."""
_UNSEEN = 0.25
"""Weight of each of two labels that contradict the judge, added to those seen."""
_SUSPICIOUS = 0.01
HUMAN = "human"
"""What stands for the humans beside the names of judges."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """How a judge's verdicts on all rollouts and humans' on some give one mean.

    Args:
        weight: Weight of the judge's verdicts: 0 is the labels alone, 1 the full correction.
        moved: How much each question moves the mean, shape (questions,).
        has_label: Whether the question has a label, shape (questions,).
        labels: Number of labelled rollouts.
    """

    weight: float
    moved: Floats
    has_label: npt.NDArray[np.bool_]
    labels: int

    def mean(self, sums: Mapping[str, Floats]) -> float:
        """The corrected mean, from 0 to 1."""
        means = {name: np.atleast_1d(np.mean(one)) for name, one in sums.items()}
        return float(_OfSums(self.weight)(means)[0])

    def error(self, clusters: Clusters | None = None) -> float:
        """Standard error of the mean; NaN below 3 labelled units (clusters, else questions)."""
        moved = per_cluster(self.moved, clusters)
        n, labelled = len(moved), self.labelled(clusters)
        if labelled < 3:
            return math.nan
        squares = float(moved @ moved) + _unseen(n, self.labels) * (1 + self.weight**2)
        # one degree of freedom less, for the weight
        return math.sqrt(squares / (n - 1) / n * (labelled - 1) / (labelled - 2))

    def labelled(self, clusters: Clusters | None = None) -> int:
        """Number of labelled units."""
        if clusters is None:
            return int(self.has_label.sum())
        return len(np.unique(clusters[self.has_label]))

    def interval(
        self, mean: float, *, samples: int, clusters: Clusters | None = None
    ) -> Interval | None:
        """Wilson's 95 % interval on the effective number of samples, at most `samples`."""
        labelled = self.labelled(clusters)
        if labelled < FEWEST_LABELLED:
            return None
        fewest = labelled if clusters is None else effective_clusters(clusters[self.has_label])
        return effective_share_interval(
            mean, self.error(clusters) ** 2, degrees=labelled - 1, fewest=fewest, most=samples
        )


def _unseen(units: int, labels: int) -> float:
    """What labels that contradict the judge, unseen so far, add to the squares of influences.

    The influence of one label is about the number of units over that of labels.
    """
    return _UNSEEN * (units / labels) ** 2


def label_sums(judge: Values, human: Values, question: npt.NDArray[np.int64]) -> dict[str, Floats]:
    """What `corrected_mean` reads of each question, shape (questions,).

    Each rollout counts 1 / (rollouts of its question).

    Args:
        judge: The judge's verdict on each rollout, from 0 to 1, shape (rollouts,).
        human: The humans', NaN without a label.
        question: Number of each rollout's question, from 0.

    Returns:
        `judge`: its mean verdict; `labelled`: the share with a label; `human` and `judged`: sums of
        the humans' and of the judge's verdicts over labelled rollouts.
    """
    weights = 1 / np.bincount(question)[question]
    has = ~np.isnan(human)
    columns = {
        "judge": judge,
        "labelled": has.astype(np.float64),
        "human": np.where(has, human, 0.0),
        "judged": np.where(has, judge, 0.0),
    }
    return {
        name: np.bincount(question, weights * one).astype(np.float64)
        for name, one in columns.items()
    }


def corrected_mean(sums: Mapping[str, Floats], labels: int) -> Corrected:
    """Prediction-powered mean over questions of the humans' verdicts on their samples.

    PPI++ (Angelopoulos, Duchi and Zrnic 2023): w F + mean of (Y - w F) over the labelled rollouts,
    with F the judge's mean over all rollouts and the weight w that gives the least variance; the
    weight 1 is prediction-powered inference (Angelopoulos et al. 2023), 0 the labels alone. The
    variance is that of the influence of questions, so samples of a question are one cluster, and
    labelled rollouts are a part of all. Two labels that contradict the judge, of weight 1/4 each,
    are added to the variance: a judge without an error among a few labels is not taken for one
    without errors.

    Args:
        sums: As `label_sums` gives them.
        labels: Number of labelled rollouts, at least 1.
    """
    f, a, y, g = (sums[name] for name in ("judge", "labelled", "human", "judged"))
    n, total = len(f), float(a.mean())
    own = (y - y.mean() / total * a) / total  # influence of the labels alone
    change = f - f.mean() - (g - g.mean() / total * a) / total  # and of the correction
    spread = float(change @ change)
    weight = -float(own @ change) / (spread + _unseen(n, labels)) if spread > 1e-12 else 0.0
    return Corrected(weight, own + weight * change, a > 0, labels)


@dataclass(frozen=True, slots=True)
class _OfSums:
    weight: float

    def __call__(self, means: Means) -> Floats:
        rest = (means["human"] - self.weight * means["judged"]) / means["labelled"]
        return np.clip(self.weight * means["judge"] + rest, 0.0, 1.0)


def human_measures(
    rollouts: pl.DataFrame,
    values: Values,
    labels: pl.DataFrame,
    scale: Scale,
    *,
    judge: str,
    suffix: str,
) -> Sequence[Measure]:
    """Agreement of one judge with the humans, and the corrected accuracy.

    Args:
        rollouts: `question_id` and `sample` of each rollout.
        values: The judge's combined verdict on each, as a share of the scale; NaN for none.
        labels: `question_id`, `sample` and `label` of the labelled rollouts.
        scale: The judge's scale, which reads the labels.
        judge: Name of the judge model.
        suffix: Of the metrics' names.
    """
    shares = {label: scale.read_label(label) for label in labels["label"].unique()}
    said = labels.select(
        "question_id",
        "sample",
        human=pl.col("label").replace_strict(shares, default=None, return_dtype=pl.Float64),
    )
    frame = (
        rollouts.select("question_id", "sample")
        .with_columns(judge=pl.Series(values, dtype=pl.Float64).fill_nan(None))
        .join(said, on=["question_id", "sample"], how="left", maintain_order="left")
    )
    both = frame.filter(pl.col("human").is_not_null())
    settings: dict[str, Json] = {"judge": judge, "against": HUMAN, "quantity": CORRECTNESS}
    as_text = [pl.col(c).cast(pl.String).fill_null("unread") for c in ("judge", "human")]
    pairs = both.select("question_id", first=as_text[0], second=as_text[1])
    read = both.drop_nulls()
    right, said_right = pl.col("human") == 1, pl.col("judge") == 1
    same = read.select("question_id", hit=pl.col("judge") == pl.col("human"))
    found = [
        kappa_measure(
            f"human_kappa{suffix}",
            pairs,
            is_ordered=scale.is_ordered,
            settings={**settings, **({} if scale.is_ordered else _counts(read))},
        ),
        share_measure(f"human_same{suffix}", same, settings=settings),
    ]
    if not scale.is_ordered:
        sides = {
            "judge_sensitivity": read.filter(right).select("question_id", hit=said_right),
            "judge_specificity": read.filter(~right).select("question_id", hit=~said_right),
        }
        found += [
            share_measure(f"{name}{suffix}", side, settings=settings)
            for name, side in sides.items()
        ]
    return [*found, _corrected_measure(frame, labels.height, settings, suffix)]


def _counts(read: pl.DataFrame) -> Mapping[str, Json]:
    judge, human = read["judge"] == 1, read["human"] == 1
    return {
        "both_right": int((judge & human).sum()),
        "judge_only": int((judge & ~human).sum()),
        "human_only": int((~judge & human).sum()),
        "both_wrong": int((~judge & ~human).sum()),
    }


def _corrected_measure(
    frame: pl.DataFrame, labels: int, settings: Mapping[str, Json], suffix: str
) -> Measure:
    """The corrected accuracy over the rollouts with a verdict of the judge."""
    judged = frame.drop_nulls("judge").sort("question_id")
    matched = frame["human"].count()
    facts: dict[str, Json] = {**settings, "labels": labels, "labels_elsewhere": labels - matched}
    question = judged["question_id"].rank("dense").cast(pl.Int64).to_numpy() - 1
    judge = judged["judge"].to_numpy()
    human = judged["human"].fill_null(np.nan).to_numpy()
    has = ~np.isnan(human)
    facts["labels_without_verdict"] = int(matched - has.sum())
    ids = judged["question_id"].unique(maintain_order=True)
    counts = np.bincount(question, has).astype(np.int64)
    questions = pl.DataFrame({"question_id": ids, "n": counts, "failed": np.zeros_like(counts)})
    weight, interval = 0.0, None
    if not has.any():
        facts["undefined"] = "no label is on a rollout with a verdict"
        questions = questions.clear()
    else:
        sums = label_sums(judge, human, question)
        found = corrected_mean(sums, int(has.sum()))
        weight, mean = found.weight, found.mean(sums)

        def interval(clusters: Clusters | None) -> tuple[float, float] | str:
            ends = found.interval(mean, samples=len(judge), clusters=clusters)
            units = "questions" if clusters is None else "clusters"
            few = f"fewer than {FEWEST_LABELLED} labelled {units}"
            return few if ends is None else (ends.low, ends.high)

        facts |= {"judge_mean": float(sums["judge"].mean()), "weight": round(weight, 4)}
        if unlike := _unlike(judge, has, question):
            facts["unlike"] = list(unlike)
        questions = questions.with_columns(**{k: pl.Series(v) for k, v in sums.items()})
    return Measure(
        metric=f"judge_accuracy_corrected{suffix}",
        unit="percent",
        questions=questions,
        estimate=_OfSums(weight),
        settings=facts,
        interval=interval,
    )


def _unlike(
    judge: Values, has: npt.NDArray[np.bool_], question: npt.NDArray[np.int64]
) -> tuple[float, float] | None:
    """The judge's means over labelled and over other rollouts, if they differ at 1 %."""
    n = int(question.max()) + 1
    if has.all() or len(set(question[has])) < 3:
        return None

    def side(of: npt.NDArray[np.bool_]) -> tuple[float, Floats]:
        count, total = (
            np.bincount(question, weights=of * values, minlength=n)
            for values in (np.ones(len(judge)), judge)
        )
        mean = float(total.sum() / count.sum())
        return mean, (total - mean * count) / count.mean()

    (own, moved), (other, others) = side(has), side(~has)
    error = math.sqrt(float(((moved - others) ** 2).sum()) / (n - 1) / n)
    degrees = len(set(question[has])) - 1
    if error == 0 or t_tail(abs(own - other) / error, degrees) >= _SUSPICIOUS:
        return None
    return own, other
