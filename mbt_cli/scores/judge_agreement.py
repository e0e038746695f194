"""Agreement of judges with each other, with themselves and with humans."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import Annotated, ClassVar, Literal

import polars as pl
from pydantic import Field, field_validator

from mbt_cli.core.chat import Json
from mbt_cli.core.judge_scales import CORRECTNESS, POINTS
from mbt_cli.core.measures import JUDGED_BY, Measure, ScoreInputs, Verdicts
from mbt_cli.core.plugin import AbsentByDefault
from mbt_cli.interfaces import Score
from mbt_cli.scores.agreement import kappa_measure, share_measure
from mbt_cli.scores.human import human_measures
from mbt_cli.scores.human_points import point_measures
from mbt_cli.scores.points import point_votes
from mbt_cli.scores.scoring import correctness_votes, live_only
from mbt_cli.scores.votes import Votes, both_parsed, paired_votes, repeated_votes

OWN_VOTES = "own votes"
"""What stands for a judge's other votes beside the names of judges."""


class JudgeAgreement(Score):
    """How far judges agree with each other, with their own votes, and with human labels.

    Formula: `judge_kappa:A~B` of two judge models A and B is Cohen's kappa over the votes that both
    parsed, `judge_vote_kappa` Fleiss' kappa over the votes of one judge on the same rollout;
    disagreements are weighted by their squared difference where the scale is ordered (`phases`,
    `redundancy`, points). `judge_same:A~B` and `judge_vote_same` are the shares of equal pairs.
    For a quantity other than correctness its name follows, as in `judge_kappa_metacognition:A~B`.
    With `human` on the score stage, for the judge of the answers: `human_kappa`, `human_same`;
    `judge_sensitivity`, the share of answers that humans call right and the judge too;
    `judge_specificity`, the share that humans call wrong and the judge too; and
    `judge_accuracy_corrected`, the accuracy by humans estimated from the judge's verdicts on all
    rollouts and the labels on some: w F + mean of (Y - w F) over labelled rollouts, F the judge's
    verdict, Y the label, w the weight of least variance (PPI++, Angelopoulos, Duchi and Zrnic 2023;
    w = 1 is prediction-powered inference, Angelopoulos et al. 2023, w = 0 the labels alone). With
    many labels it is at least as precise as the labels alone, whatever the judge.
    With `human` points, for each judge of points: `human_error_points`, the mean of |J - H| over
    labelled rollouts, J the judge's points (the mean of its votes) and H the human's;
    `human_bias_points`, the mean of J - H; `human_same_points`, the share with J = H;
    `human_band_points`, the share in the same band (`bands`); `human_rank_points`, Spearman's rank
    correlation, ties at their mean rank; `human_kappa_points`, kappa with squared differences
    (Cohen 1968); `human_unread_points`, the share of labelled rollouts whose points are unread,
    which are in no other number.
    Unit: kappa, 1 for full agreement, 0 for that of chance; per cent of verdicts; points for the
    error and the bias; a correlation from -1 to 1; the corrected
    accuracy per cent of samples, averaged within questions first. Several votes of a judge count
    by their majority beside a label, each for itself otherwise.
    Intervals: 95 % over questions. Kappa has the studentized bootstrap with the clustered delta
    method (Yang and Zhou 2014); shares and the corrected accuracy have Wilson's on the effective
    number of samples of their clustered variance. The corrected accuracy has one from 10 labelled
    questions on. Measured with 500 to 1,000 rollouts of 1 or 4 samples and 50 to 200 labels drawn
    at random: it covers 93 to 98 % where the judge errs in 5 to 45 % of verdicts, up to 99 % where
    it errs less.
    Assumes: the labelled rollouts are drawn at random from all rollouts of the cell. A note below
    the table says where the judge's verdicts on them differ from the others at 1 %, and how many
    labels are of no rollout or of one without a verdict.
    Reads: all verdicts of the stage; `human` of the score stage. Unparsed verdict, tied votes,
    failed rollout: no pair, counted.
    Known holes: a rollout without an answer is wrong by definition, for every judge, and counts as
    agreement; kappa is low where nearly all verdicts are the same value; human labels err, too.
    """

    reads_labels: ClassVar[bool] = True
    needs_one: ClassVar[bool] = True

    kind: Literal["judge_agreement"] = "judge_agreement"
    bands: Annotated[tuple[float, ...], Field(min_length=2), AbsentByDefault] = (0, 1, 6, 7)
    """Points at which each band begins, ascending: by default 0 (wrong), 1 to 5 (partial), 6
    (almost right) and 7 (right) are bands."""

    @field_validator("bands")
    @classmethod
    def _ascends(cls, bands: tuple[float, ...]) -> tuple[float, ...]:
        if any(low >= high for low, high in pairwise(bands)):
            raise ValueError("must ascend: each number is where a band begins")
        return bands

    def needs(self) -> Collection[str]:
        return (CORRECTNESS, POINTS)

    def makes(self, metric: str) -> bool:
        return metric.startswith(("judge_", "human_"))

    def measure(self, inputs: ScoreInputs) -> Sequence[Measure]:
        judges = inputs.judges
        found = [
            measure
            for (quantity, model), verdicts in judges.items()
            for measure in _own_votes(quantity, model, verdicts, judges)
        ]
        for first, second in combinations(judges, 2):
            same_scale = judges[first].scale == judges[second].scale
            if first[0] == second[0] and same_scale:
                found += _pair(*first, second[1], judges[first], judges[second])
        return [*found, *self._against_humans(inputs)]

    def _against_humans(self, inputs: ScoreInputs) -> Iterator[Measure]:
        """Each judge beside the human labels: points if a judge gives any, else verdicts."""
        if inputs.human is None or inputs.human.is_empty():
            return
        votes_of: Callable[[ScoreInputs], Votes | None]
        measures_of: Callable[..., Sequence[Measure]]
        if any(quantity == POINTS for quantity, _ in inputs.judges):
            labelled, votes_of = POINTS, point_votes
            measures_of = partial(point_measures, bands=self.bands)
        else:
            labelled, votes_of, measures_of = CORRECTNESS, correctness_votes, human_measures
        for (quantity, model), verdicts in inputs.judges.items():
            if quantity != labelled:
                continue
            votes = votes_of(replace(inputs, verdicts={quantity: verdicts}))
            assert votes is not None
            yield from measures_of(
                inputs.rollouts,
                live_only(inputs, votes.value),
                inputs.human,
                verdicts.scale,
                judge=model,
                suffix=_suffix(quantity, model, inputs.judges),
            )


def _own_votes(
    quantity: str,
    model: str,
    verdicts: Verdicts,
    judges: Mapping[tuple[str, str], Verdicts],
) -> Iterator[Measure]:
    """Agreement of the votes of one judge, if it has several on a rollout."""
    if not verdicts.rows.height or not verdicts.rows["vote"].max():
        return
    pairs = repeated_votes(verdicts.rows, verdicts.scale.column)
    name = f"{_of(quantity)}{_suffix(quantity, model, judges)}"
    settings: dict[str, Json] = {"judge": model, "against": OWN_VOTES, "quantity": quantity}
    names = (f"judge_vote_kappa{name}", f"judge_vote_same{name}")
    yield from _agreement(names, pairs, verdicts, settings)


def _pair(
    quantity: str, model: str, other: str, verdicts: Verdicts, others: Verdicts
) -> Iterator[Measure]:
    """Agreement of two judge models on one quantity."""
    pairs = paired_votes(verdicts.rows, others.rows, verdicts.scale.column)
    name = f"{_of(quantity)}{JUDGED_BY}{model}~{other}"
    settings: dict[str, Json] = {"judge": model, "against": other, "quantity": quantity}
    names = (f"judge_kappa{name}", f"judge_same{name}")
    yield from _agreement(names, pairs, verdicts, settings)


def _agreement(
    names: tuple[str, str],
    pairs: pl.DataFrame,
    verdicts: Verdicts,
    settings: Mapping[str, Json],
) -> Iterator[Measure]:
    kappa, same = names
    yield kappa_measure(kappa, pairs, is_ordered=verdicts.scale.is_ordered, settings=settings)
    hits = both_parsed(pairs).with_columns(hit=pl.col("first") == pl.col("second"))
    yield share_measure(same, hits, settings=settings)


def _of(quantity: str) -> str:
    return "" if quantity == CORRECTNESS else f"_{quantity}"


def _suffix(quantity: str, model: str, judges: Mapping[tuple[str, str], Verdicts]) -> str:
    """The model's name, where several models judge the quantity."""
    several = sum(one == quantity for one, _ in judges) > 1
    return f"{JUDGED_BY}{model}" if several else ""
