"""Scores of points and their agreement with humans, against hand-worked cases and scipy."""

import json

import numpy as np
import polars as pl
import pytest
from scipy import stats

from mbt_cli.core.judge_scales import POINTS, Points
from mbt_cli.core.measures import ScoreInputs, Verdicts
from mbt_cli.registry import SCORES
from mbt_cli.scores.judge_agreement import JudgeAgreement
from mbt_cli.scores.points import PointsScore
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.verifiers.text import TextVerifier

SCALE = Points("points", high=7)


def inputs(points, human=None, failed=(), no_text=()):
    """A cell: question to its samples, each a list of votes (None: unread)."""
    keys = [(q, s) for q, samples in points.items() for s in range(len(samples))]
    rollouts = pl.DataFrame(
        {
            "question_id": [q for q, _ in keys],
            "sample": [s for _, s in keys],
            "failure": ["timeout" if key in failed else None for key in keys],
            "no_text": ["empty" if key in no_text else None for key in keys],
        },
        schema_overrides={"sample": pl.Int64, "failure": pl.String, "no_text": pl.String},
    )
    votes = [
        (q, s, v, vote, None if vote is not None else "unreadable_verdict")
        for q, s in keys
        for v, vote in enumerate(points[q][s])
    ]
    schema = {
        "question_id": pl.String,
        "sample": pl.Int64,
        "vote": pl.Int64,
        "points": pl.Float64,
        "failure": pl.String,
    }
    verdicts = Verdicts(pl.DataFrame(votes, schema=schema, orient="row"), SCALE)
    labels = None
    if human is not None:
        labels = pl.DataFrame(
            [(q, 0, str(label)) for q, label in human.items()],
            schema={"question_id": pl.String, "sample": pl.Int64, "label": pl.String},
            orient="row",
        )
    return ScoreInputs(
        rollouts=rollouts,
        verifier=TextVerifier(),
        verdicts={POINTS: verdicts},
        judges={(POINTS, "judge"): verdicts},
        human=labels,
    )


def numbers(score, cell):
    rows = summarise_all([(m, None) for m in score.measure(cell)], resamples=200, seed=0)
    return {row["metric"]: row for row in rows}


RUNS = {
    "a": [[7.0, 6.0, 2.0], [0.0, 0.0, 0.0]],
    "b": [[6.0, None, 7.0], [None, None, None]],
    "c": [[1.0, 1.0, 7.0], [6.0, 6.0, 6.0]],
}


@pytest.mark.parametrize(
    ("over_votes", "of_rollouts"),
    [
        ("mean", {"a": (5, 0), "b": (6.5,), "c": (3, 6)}),
        ("median", {"a": (6, 0), "b": (6.5,), "c": (1, 6)}),
        ("min", {"a": (2, 0), "b": (6,), "c": (1, 6)}),
        ("max", {"a": (7, 0), "b": (7,), "c": (7, 6)}),
    ],
)
def test_votes_become_points_and_points_means(over_votes, of_rollouts):
    found = numbers(PointsScore(over_votes=over_votes), inputs(RUNS))
    name = "points" if over_votes == "mean" else f"points_{over_votes}_vote"

    def mean(of):
        return float(np.mean([of(values) for values in of_rollouts.values()]))

    assert found[name]["value"] == pytest.approx(mean(np.mean))
    assert found[f"{name}_at_least_6"]["value"] == pytest.approx(
        mean(lambda values: np.mean([v >= 6 for v in values]))
    )
    assert found[f"{name}_best"]["value"] == pytest.approx(mean(max))
    assert found[f"{name}_worst"]["value"] == pytest.approx(mean(min))
    # the unread rollout is in no number, and counted
    assert found[name]["failed"] == 1
    assert found[name]["unit"] == "points"


def test_unread_votes_are_a_share_and_never_points():
    found = numbers(PointsScore(), inputs(RUNS))

    assert found["points_unread"]["value"] == pytest.approx((0 + (1 / 3 + 1) / 2 + 0) / 3)
    nothing = numbers(PointsScore(), inputs({"a": [[None]], "b": [[None]]}))
    assert nothing["points"]["value"] is None
    assert nothing["points_at_least_6"]["value"] is None


def test_an_empty_reply_has_the_fewest_points_and_a_failed_one_none():
    cell = inputs(
        {"a": [[7.0]], "b": [[7.0]], "c": [[None]]}, failed={("b", 0)}, no_text={("c", 0)}
    )

    found = numbers(PointsScore(), cell)

    assert found["points"]["value"] == pytest.approx(3.5)
    assert (found["points"]["n"], found["points"]["failed"]) == (2, 1)
    assert found["points_unread"]["value"] == 0


def test_intervals_stay_within_the_scale():
    few = {name: [[value]] for name, value in zip("abcd", (7.0, 7.0, 7.0, 0.0), strict=True)}

    row = numbers(PointsScore(), inputs(few))["points"]

    assert 0 <= row["low"] <= row["value"] <= row["high"] <= 7


def test_another_threshold_and_two_scores_side_by_side():
    cell = inputs({"a": [[7.0]], "b": [[1.0]]})

    assert numbers(PointsScore(at_least=7), cell)["points_at_least_7"]["value"] == 0.5
    mean, least = PointsScore(), PointsScore(over_votes="min")
    assert not mean.collides(least)
    assert mean.collides(PointsScore(at_least=7))
    assert all(least.makes(m.metric) for m in least.measure(cell))


# ten proofs: the judge's points, None for unread, and the human's
JUDGE = [7, 6, 1, 0, 7, 6, None, 3, 0, 7]
HUMAN = [7, 7, 0, 0, 6, 6, 7, 5, 1, 1]


def beside_humans(judge=JUDGE, human=HUMAN, **settings):
    names = [f"q{k:02d}" for k in range(len(judge))]
    points = {q: [[None if p is None else float(p)]] for q, p in zip(names, judge, strict=True)}
    cell = inputs(points, dict(zip(names, human, strict=True)))
    return numbers(JudgeAgreement(**settings), cell)


def test_agreement_with_humans_by_hand():
    found = beside_humans()

    # apart: 0 -1 1 0 1 0 . -2 -1 6
    assert found["human_error_points"]["value"] == pytest.approx(12 / 9)
    assert found["human_bias_points"]["value"] == pytest.approx(4 / 9)
    assert found["human_same_points"]["value"] == pytest.approx(3 / 9)
    # bands 0 | 1-5 | 6 | 7: 7=7, 6-7, 1-0, 0=0, 7-6, 6=6, 3=5, 0-1, 7-1
    assert found["human_band_points"]["value"] == pytest.approx(4 / 9)
    assert found["human_unread_points"]["value"] == pytest.approx(1 / 10)
    settings = json.loads(found["human_error_points"]["settings"])
    assert settings["pairs"] == 9
    assert settings["labels_without_verdict"] == 1


def test_other_bands():
    found = beside_humans(bands=(0, 2, 5))

    # 0-1 | 2-4 | 5-7: all but 3-5 and 7-1
    assert found["human_band_points"]["value"] == pytest.approx(7 / 9)


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlation_and_kappa_are_those_of_other_programs(seed):
    rng = np.random.default_rng(seed)
    human = rng.integers(0, 8, 60)
    judge = np.clip(human + rng.integers(-2, 3, 60), 0, 7)

    found = beside_humans(judge.tolist(), human.tolist())

    assert found["human_rank_points"]["value"] == pytest.approx(
        stats.spearmanr(judge, human).statistic
    )
    counts = np.zeros((8, 8))
    np.add.at(counts, (judge, human), 1)
    weights = (np.arange(8)[:, None] - np.arange(8)) ** 2
    chance = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    kappa = 1 - (weights * counts).sum() / (weights * chance).sum()
    assert found["human_kappa_points"]["value"] == pytest.approx(kappa)
    assert found["human_error_points"]["value"] == pytest.approx(np.abs(judge - human).mean())
    for row in found.values():
        assert row["low"] <= row["value"] <= row["high"], row["metric"]


def test_quadratic_kappa_is_that_of_statsmodels():
    tables = pytest.importorskip("statsmodels.stats.inter_rater")
    rng = np.random.default_rng(7)
    human, judge = rng.integers(0, 8, (2, 80))
    counts = np.zeros((8, 8))
    np.add.at(counts, (judge, human), 1)

    found = beside_humans(judge.tolist(), human.tolist())["human_kappa_points"]["value"]

    assert found == pytest.approx(tables.cohens_kappa(counts, wt="quadratic").kappa)


def test_a_judge_with_one_value_has_no_rank_correlation():
    row = beside_humans([6, 6, 6], [0, 1, 7])["human_rank_points"]

    assert row["value"] is None
    assert json.loads(row["settings"])["undefined"] == "one side gives a single value"


def test_a_judge_that_is_never_read_has_no_agreement_and_all_unread():
    found = beside_humans([None, None], [0, 7])

    assert found["human_unread_points"]["value"] == 1
    assert all(found[f"human_{n}_points"]["value"] is None for n in ("error", "bias", "same"))


def test_bands_ascend():
    with pytest.raises(ValueError, match="must ascend"):
        SCORES.make({"kind": "judge_agreement", "bands": [0, 6, 1]})
