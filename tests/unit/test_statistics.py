"""Intervals and tests against scipy and by hand."""

import numpy as np
import pytest
from scipy import stats

from mbt_cli.scores.statistics import (
    Quantity,
    bootstrap,
    bootstrap_p,
    holm,
    mcnemar_p,
    percentile_interval,
    resample_counts,
    wilson,
)


def mean(values):
    return Quantity({"value": np.asarray(values, dtype=float)}, lambda means: means["value"])


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 5), (7, 7), (3, 40), (120, 90)])
def test_mcnemar_is_the_exact_binomial_test(b, c):
    expected = stats.binomtest(b, b + c, 0.5).pvalue if b + c else 1.0

    assert mcnemar_p(b, c) == pytest.approx(expected)


def test_mcnemar_stays_exact_for_thousands_of_questions():
    assert mcnemar_p(6_000, 6_400) == pytest.approx(stats.binomtest(6_000, 12_400).pvalue)


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (10, 10), (3, 7), (1, 2417), (1200, 2417)])
def test_wilson_equals_scipy(successes, n):
    expected = stats.binomtest(successes, n).proportion_ci(method="wilson")

    found = wilson(successes, n)

    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_wilson_refuses_what_is_no_share():
    with pytest.raises(ValueError, match="3 of 2 is not a share"):
        wilson(3, 2)


def test_holm_multiplies_by_the_comparisons_left_and_never_falls():
    # sorted 0.01 * 4, 0.02 * 3 = 0.06, 0.025 * 2 = 0.05 -> 0.06, 0.9 * 1
    assert holm([0.02, 0.9, 0.01, 0.025]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([None, 0.7, 0.6]) == [None, 1.0, 1.0]
    assert holm([]) == []


def test_every_resample_draws_as_many_questions_as_there_are():
    chunks = list(resample_counts(300_000, resamples=9, seed=1))

    counts = np.concatenate(chunks)
    assert len(chunks) > 1
    assert counts.shape == (9, 300_000)
    assert counts.sum(axis=1).tolist() == [300_000.0] * 9


def test_the_percentile_interval_agrees_with_scipys_bootstrap():
    values = np.random.default_rng(3).exponential(size=200)

    (drawn,) = bootstrap([mean(values)], resamples=20_000, seed=1)
    found = percentile_interval(drawn)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval

    # both are random: equal to within a few per cent of the width
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.05 * width)
    assert found.high == pytest.approx(expected.high, abs=0.05 * width)


def test_the_same_seed_gives_the_same_draws_whatever_is_drawn_beside():
    values, others = np.arange(50.0), np.arange(70.0)

    alone = bootstrap([mean(values)], resamples=200, seed=5)[0]
    beside = bootstrap([mean(others), mean(values)], resamples=200, seed=5)[1]
    another_seed = bootstrap([mean(values)], resamples=200, seed=6)[0]

    assert alone == pytest.approx(beside, abs=1e-12)
    assert (alone != another_seed).any()


def test_quantities_over_the_same_questions_see_the_same_resamples():
    values = np.random.default_rng(0).random(40)

    first, second = bootstrap([mean(values), mean(values + 1)], resamples=300, seed=2)

    assert second - first == pytest.approx(np.ones(300))


def test_missing_values_are_left_out_of_every_resamples_mean():
    values = np.array([1.0, np.nan, 1.0, np.nan])

    (drawn,) = bootstrap([mean(values)], resamples=500, seed=1)

    # a resample of missing questions alone has no mean: probability 2 ** -4
    assert set(drawn[~np.isnan(drawn)].tolist()) == {1.0}
    assert 10 < np.isnan(drawn).sum() < 60
    assert mean(values).value() == 1.0


def test_a_number_of_several_means_is_resampled_jointly():
    tokens, right = np.array([10.0, 30.0, 50.0]), np.array([1.0, 1.0, 0.0])
    ratio = Quantity({"tokens": tokens, "right": right}, lambda m: m["tokens"] / m["right"])

    (drawn,) = bootstrap([ratio], resamples=400, seed=1)

    assert ratio.value() == pytest.approx(45.0)  # 30 tokens at 2 / 3 right
    # only the third question drawn three times gives 50 / 0, which is not a number to count
    assert drawn[np.isfinite(drawn)].min() == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0] * 999, 2 / 1000),
        ([-1.0] * 999, 2 / 1000),
        ([0.0] * 9, 1.0),
        ([1e-17, -1e-17, 0.0], 1.0),  # equal but for rounding
        ([-1.0] + [1.0] * 98, 2 * 2 / 100),
        ([np.nan, np.nan], None),
    ],
)
def test_the_bootstrap_p_value_is_twice_the_smaller_side(differences, p):
    assert bootstrap_p(np.array(differences)) == (p if p is None else pytest.approx(p))


def test_no_questions_and_no_resamples_are_refused():
    with pytest.raises(ValueError, match="no questions"):
        bootstrap([mean([])], resamples=10, seed=1)
    with pytest.raises(ValueError, match="at least 1"):
        bootstrap([mean([1.0])], resamples=0, seed=1)


def test_an_interval_of_undefined_resamples_is_none():
    assert percentile_interval(np.array([np.nan, np.inf])) is None
