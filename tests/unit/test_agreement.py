"""Gamma and kappa by hand and against scipy."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from mbt_cli.errors import StageError
from mbt_cli.scores.mqi import gamma_of_shares
from mbt_cli.scores.votes import cohens_kappa, confusion


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


def test_kappa_by_hand():
    first = verdicts(list("AAAAABBBBB"))
    second = verdicts(list("AAAABABBBB"))

    table = confusion(first, second, "grade")

    # 8 of 10 agree; chance 0.5 * 0.5 + 0.5 * 0.5 = 0.5; (0.8 - 0.5) / 0.5
    assert cohens_kappa(table) == pytest.approx(0.6)
    assert table.rows() == [("A", "A", 4), ("A", "B", 1), ("B", "A", 1), ("B", "B", 4)]


def test_unread_and_missing_verdicts_stand_in_the_table_but_not_in_kappa():
    first = verdicts(["A", "B", None], [None, None, "unreadable"])
    second = verdicts(["A", "B"])

    table = confusion(first, second, "grade")

    assert table.rows() == [("A", "A", 1), ("B", "B", 1), ("unread", "missing", 1)]
    assert cohens_kappa(table) == pytest.approx(1.0)


def test_kappa_is_undefined_when_chance_alone_agrees_fully():
    table = confusion(verdicts(["A", "A"]), verdicts(["A", "A"]), "grade")

    assert np.isnan(cohens_kappa(table))


def test_a_vote_that_stands_twice_is_refused():
    with pytest.raises(StageError, match="verdicts have 2 rows that share a key"):
        confusion(pl.concat([verdicts(["A"])] * 2), verdicts(["A"]), "grade")
