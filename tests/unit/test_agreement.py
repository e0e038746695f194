"""Gamma and kappa by hand, against scipy and statsmodels, and the coverage of their intervals."""

import numpy as np
import orjson
import polars as pl
import pytest
from scipy import stats

from mbt_cli.core.measures import Measure
from mbt_cli.errors import StageError
from mbt_cli.scores.agreement import kappa_measure
from mbt_cli.scores.mqi import gamma_of_shares
from mbt_cli.scores.statistics import Quantity
from mbt_cli.scores.summaries import summarise_all
from mbt_cli.scores.votes import confusion, paired_votes, repeated_votes


def verdicts(grades, failures=None):
    return pl.DataFrame(
        {
            "question_id": [f"q{i}" for i in range(len(grades))],
            "sample": [0] * len(grades),
            "vote": [0] * len(grades),
            "grade": grades,
            "failure": failures or [None] * len(grades),
        },
        schema_overrides={"failure": pl.String, "grade": pl.String},
    )


def gamma_of(confidence, right):
    levels = np.unique(confidence)
    weights = [
        np.array([[float(((confidence == level) & (right == side)).sum())] for level in levels])
        for side in (1, 0)
    ]
    return float(gamma_of_shares(*weights)[0])


def test_gamma_counts_pairs_of_one_right_and_one_wrong():
    confidence = np.array([0.9, 0.9, 0.5, 0.2])
    right = np.array([1, 0, 1, 0])

    # pairs (right, wrong): 0.9-0.9 tie, 0.9-0.2 +, 0.5-0.9 -, 0.5-0.2 +: (2 - 1) / 3
    assert gamma_of(confidence, right) == pytest.approx(1 / 3)


def test_gamma_without_ties_is_somers_d_of_scipy():
    random = np.random.default_rng(1)
    confidence, right = random.permutation(60) / 60, random.integers(0, 2, 60)

    expected = stats.somersd(right, confidence).statistic

    # without ties in confidence every pair counts, and Somers' D given `right` is gamma
    assert gamma_of(confidence, right) == pytest.approx(expected)


def test_gamma_is_undefined_without_a_pair_that_differs():
    assert np.isnan(gamma_of(np.array([0.5, 0.5]), np.array([1, 0])))
    assert np.isnan(gamma_of(np.array([0.1, 0.9]), np.array([1, 1])))


def summary(measure: Measure, resamples=500) -> dict:
    (row,) = summarise_all([(measure, None)], resamples=resamples, seed=0)
    return {**row, "settings": orjson.loads(row["settings"])}


def kappa_of(first, second, *, is_ordered=False, question_ids=None):
    pairs = pl.DataFrame(
        {
            "question_id": question_ids or [f"q{i}" for i in range(len(first))],
            "first": [str(one) for one in first],
            "second": [str(one) for one in second],
        }
    )
    return summary(kappa_measure("kappa", pairs, is_ordered=is_ordered))


def test_kappa_by_hand():
    pairs = paired_votes(verdicts(list("AAAAABBBBB")), verdicts(list("AAAABABBBB")), "grade")

    found = summary(kappa_measure("kappa", pairs, is_ordered=False))

    # 8 of 10 agree; chance 0.5 * 0.5 + 0.5 * 0.5 = 0.5; (0.8 - 0.5) / 0.5
    assert found["value"] == pytest.approx(0.6)
    assert found["low"] < 0.6 < found["high"] <= 1
    assert found["settings"]["pairs"] == 10
    table = confusion(pairs)
    assert table.rows() == [("A", "A", 4), ("A", "B", 1), ("B", "A", 1), ("B", "B", 4)]


def test_weighted_kappa_by_hand():
    # squared differences 0, 1, 4, 0: mean 1.25; of independent draws from (0, 1, 2, 3) and
    # (0, 2, 0, 3): mean square 3.5 + 3.25, minus twice 1.5 x 1.25 = 3
    found = kappa_of([0, 1, 2, 3], [0, 2, 0, 3], is_ordered=True)

    assert found["value"] == pytest.approx(1 - 1.25 / 3)
    assert found["settings"]["weights"] == "quadratic"


def test_kappa_is_that_of_statsmodels():
    rating = pytest.importorskip("statsmodels.stats.inter_rater")
    random = np.random.default_rng(3)
    first = random.integers(0, 4, 200)
    second = np.where(random.random(200) < 0.6, first, random.integers(0, 4, 200))
    counts = np.zeros((4, 4))
    np.add.at(counts, (first, second), 1)

    for is_ordered, weights in ((False, None), (True, "quadratic")):
        expected = rating.cohens_kappa(counts, wt=weights)
        pairs = pl.DataFrame(
            {
                "question_id": [f"q{i}" for i in range(200)],
                "first": first.astype(str),
                "second": second.astype(str),
            }
        )
        measure = kappa_measure("kappa", pairs, is_ordered=is_ordered)
        columns = measure.questions.drop("question_id", "n", "failed")
        quantity = Quantity({c.name: c.to_numpy().astype(float) for c in columns}, measure.estimate)
        assert quantity.value() == pytest.approx(expected.kappa)
        # with one pair per question the clustered standard error is the plain one, but for n - 1
        error = np.sqrt(np.mean(quantity.influence() ** 2) / 200)
        assert error == pytest.approx(expected.std_kappa, rel=1e-4)


def test_kappa_of_repeated_votes_is_fleiss_kappa_of_statsmodels():
    rating = pytest.importorskip("statsmodels.stats.inter_rater")
    random = np.random.default_rng(4)
    truth = random.integers(0, 3, 80)
    grades = np.where(random.random((80, 3)) < 0.7, truth[:, None], random.integers(0, 3, (80, 3)))
    frame = pl.DataFrame(
        {
            "question_id": np.repeat([f"q{i}" for i in range(80)], 3),
            "sample": 0,
            "vote": np.tile(np.arange(3), 80),
            "grade": grades.reshape(-1).astype(str),
            "failure": pl.Series([None] * 240, dtype=pl.String),
        }
    )

    measure = kappa_measure("kappa", repeated_votes(frame, "grade"), is_ordered=False)

    table = np.stack([(grades == k).sum(axis=1) for k in range(3)], axis=1)
    assert summary(measure)["value"] == pytest.approx(rating.fleiss_kappa(table))
    assert summary(measure)["settings"]["pairs"] == 240


def test_samples_of_a_question_widen_the_interval_of_kappa():
    random = np.random.default_rng(5)
    first = random.integers(0, 2, 100)
    second = np.where(random.random(100) < 0.8, first, 1 - first)

    alone = kappa_of(first, second)
    copied = kappa_of(
        np.repeat(first, 4), np.repeat(second, 4), question_ids=[f"q{i // 4}" for i in range(400)]
    )

    # four copies of each pair tell nothing new: same number, same interval
    assert copied["value"] == pytest.approx(alone["value"])
    assert copied["n"] == alone["n"] == 100
    assert (copied["low"], copied["high"]) == pytest.approx((alone["low"], alone["high"]))


@pytest.mark.parametrize(
    ("questions", "samples", "sensitivity", "specificity"),
    [(60, 1, 0.8, 0.8), (60, 4, 0.95, 0.8), (150, 4, 0.9, 0.9)],
)
def test_the_interval_of_kappa_covers_the_truth(questions, samples, sensitivity, specificity):
    random = np.random.default_rng([6, questions, samples])
    ids = [f"q{i // samples:03}" for i in range(questions * samples)]

    def draw(count: int):
        hard = random.beta(1.4, 0.9, count)[:, None]  # questions differ: correlation 0.3
        first = random.random((count, samples)) < hard
        wrong = np.where(first, 1 - sensitivity, 1 - specificity)
        return first, first ^ (random.random((count, samples)) < wrong)

    def plain_kappa(first, second):
        p, q, same = first.mean(), second.mean(), (first == second).mean()
        chance = p * q + (1 - p) * (1 - q)
        return (same - chance) / (1 - chance)

    truth = plain_kappa(*draw(200_000))
    covered = []
    for _ in range(300):
        first, second = (side.reshape(-1).astype(int) for side in draw(questions))
        pairs = pl.DataFrame(
            {"question_id": ids, "first": first.astype(str), "second": second.astype(str)}
        )
        row = summary(kappa_measure("kappa", pairs, is_ordered=False), resamples=400)
        covered.append(row["low"] <= truth <= row["high"])

    # 300 studies: a standard error of 1.3 points
    assert 0.92 <= np.mean(covered) <= 0.99


def test_unread_and_missing_verdicts_stand_in_the_table_but_not_in_kappa():
    pairs = paired_votes(
        verdicts(["A", "B", None], [None, None, "unreadable"]), verdicts(["A", "B"]), "grade"
    )

    found = summary(kappa_measure("kappa", pairs, is_ordered=False))

    assert confusion(pairs).rows() == [("A", "A", 1), ("B", "B", 1), ("unread", "missing", 1)]
    assert found["value"] == pytest.approx(1.0)
    assert found["n"] == 2


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("AA", "AA", {"undefined": "all verdicts are the same value"}),
        ("AB", "AB", {"no_interval": "the verdicts never differ"}),
        ("AABB", "AAAA", {"no_interval": "one side gives a single value"}),
        ("", "", {"undefined": "no rollout has two parsed verdicts"}),
    ],
)
def test_a_kappa_that_is_undefined_says_why(first, second, why):
    pairs = paired_votes(verdicts(list(first)), verdicts(list(second)), "grade")

    found = summary(kappa_measure("kappa", pairs, is_ordered=False))

    assert found["low"] is None
    assert (found["value"] is None) == ("undefined" in why)
    assert found["settings"].items() >= why.items()


def test_a_kappa_over_one_question_has_no_interval():
    found = kappa_of("AABB", "AABA", question_ids=["q"] * 4)

    assert found["value"] == pytest.approx(0.5)
    assert found["settings"]["no_interval"] == "one question"


def test_a_vote_that_stands_twice_is_refused():
    with pytest.raises(StageError, match="verdicts have 2 rows that share a key"):
        paired_votes(pl.concat([verdicts(["A"])] * 2), verdicts(["A"]), "grade")
