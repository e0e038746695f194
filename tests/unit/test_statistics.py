"""Intervals and tests against scipy, statsmodels and by hand."""

import math

import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats import contingency_tables, multitest, proportion

from mbt_cli.scores.seeds import over_seeds
from mbt_cli.scores.statistics import (
    Quantity,
    bootstrap,
    cluster_numbers,
    effective_clusters,
    equivalence_p,
    holm,
    mcnemar_p,
    not_worse_than_best,
    paired_p,
    paired_share_interval,
    per_cluster,
    resample_counts,
    share_interval,
    smallest_difference,
    swap_p,
    t_quantile,
    t_tail,
    tango_interval,
    wilson,
)


def mean(values, clusters=None):
    columns = {"value": np.asarray(values, dtype=float)}
    return Quantity(columns, lambda means: means["value"], clusters)


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


@pytest.mark.parametrize(("b", "c"), [(0, 3), (1, 5), (7, 7), (3, 40), (120, 90)])
def test_mcnemar_equals_statsmodels(b, c):
    oracle = contingency_tables.mcnemar([[50, b], [c, 9]], exact=True)

    assert mcnemar_p(b, c) == pytest.approx(oracle.pvalue)


@pytest.mark.parametrize(("successes", "n"), [(0, 12), (1, 50), (6, 12), (49, 50), (500, 500)])
def test_wilson_equals_statsmodels(successes, n):
    oracle = proportion.proportion_confint(successes, n, method="wilson")

    found = wilson(successes, n)

    assert (found.low, found.high) == pytest.approx(oracle, abs=1e-12)


@pytest.mark.parametrize("table", [(12, 5, 60), (0, 3, 40), (2, 0, 100), (0, 0, 30), (7, 7, 14)])
@pytest.mark.parametrize("end", ["low", "high"])
def test_an_end_of_tangos_interval_is_where_the_score_test_just_rejects(table, end):
    only_first, only_second, n = table
    difference = getattr(tango_interval(*table), end)

    def minus_log_likelihood(share: float) -> float:  # of the questions only the second has right
        counts = (only_first, only_second, n - only_first - only_second)
        shares = (share + difference, share, 1 - 2 * share - difference)
        return -sum(c * np.log(s) for c, s in zip(counts, shares, strict=True) if c)

    bounds = (max(0.0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12)
    share = optimize.minimize_scalar(
        minus_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12}
    ).x
    apart = only_first - only_second - n * difference
    score = apart / np.sqrt(n * (2 * share + difference - difference**2))

    assert abs(score) == pytest.approx(stats.norm.ppf(0.975), abs=1e-4)


def test_holm_equals_statsmodels():
    p = np.random.default_rng(3).random(40) ** 3
    _, oracle, *_ = multitest.multipletests(p, method="holm")

    assert holm(p.tolist()) == pytest.approx(oracle.tolist())


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


def test_the_studentized_interval_is_that_of_a_plain_computation():
    values = np.random.default_rng(3).exponential(size=40)
    n, t = 40, []
    for counts in np.concatenate(list(resample_counts(n, resamples=999, seed=1))):
        drawn = np.repeat(values, counts.astype(int))
        t.append((drawn.mean() - values.mean()) / stats.sem(drawn))
    low, high = np.percentile(t, [2.5, 97.5], method="closest_observation")

    found = bootstrap([mean(values)], resamples=999, seed=1)[0].interval()

    error = stats.sem(values)
    expected = values.mean() - high * error, values.mean() - low * error
    assert (found.low, found.high) == pytest.approx(expected)


@pytest.mark.parametrize("degrees", [1, 2, 11, 499, 12_000])
def test_students_t_equals_scipy(degrees):
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees))
    for t in (0.01, 1.0, 2.2, 9.0):
        assert t_tail(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-6)


def test_a_share_counts_the_questions_that_its_samples_are_worth():
    ones = np.ones
    # samples that always agree are worth one each, whatever their number
    alike = np.array([1.0] * 6 + [0.0] * 6)
    assert share_interval(alike, 4 * ones(12)) == wilson(6, 12)
    # samples that vary freely are worth more, at most their number
    spread = np.array([0.5] * 12)
    assert share_interval(spread, 4 * ones(12)) == wilson(24, 48)
    # one right sample says little about how alike the samples of a question are
    none, one = np.zeros(12), np.array([0.25] + [0.0] * 11)
    assert share_interval(none, 4 * ones(12)) == wilson(0, 12)
    assert share_interval(one, 4 * ones(12)).high > 0.12


def test_a_difference_of_paired_shares_of_several_samples_has_newcombes_interval():
    random = np.random.default_rng(5)
    own = random.binomial(4, 0.6, 40) / 4
    base = (random.binomial(2, 0.3, 40) + 2 * own.round()) / 4
    four = 4 * np.ones(40)
    first, second = share_interval(own, four), share_interval(base, four)
    p, q = own.mean(), base.mean()
    r = np.corrcoef(own, base)[0, 1]
    down, up = p - first.low, second.high - q

    found = paired_share_interval(own, base, four, four)

    assert found.low == pytest.approx(p - q - np.sqrt(down**2 - 2 * r * down * up + up**2))


def test_sides_that_differ_by_the_margin_are_seldom_called_equivalent():
    # only one side ever wins, and by 2 points: the case in which other intervals err most
    for n in (100, 150, 200, 300, 500):
        reached = [wins for wins in range(n) if tango_interval(wins, 0, n, level=0.9).high < 0.02]
        assert stats.binom.pmf(reached, n, 0.02).sum() < 0.065


def test_the_permutation_test_of_few_questions_is_exact():
    first, second = np.array([3.0, 1.0, 4.0, 1.5, 5.0]), np.array([2.0, 1.5, 2.0, 1.5, 1.0])
    differences = first - second
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    ).pvalue

    assert swap_p(mean(first), mean(second), seed=1) == pytest.approx(expected)
    assert swap_p(mean(first), mean(first), seed=1) == 1.0


def test_the_permutation_test_of_many_questions_agrees_with_scipys():
    random = np.random.default_rng(4)
    first = random.exponential(size=60)
    second = first + random.normal(0.2, 0.8, 60)

    found = swap_p(mean(first), mean(second), seed=1)

    expected = stats.permutation_test(
        (first - second,), np.mean, permutation_type="samples", n_resamples=50_000, rng=1
    ).pvalue
    assert found == pytest.approx(expected, rel=0.3)
    strong = swap_p(mean(first), mean(first + 1 + random.random(60)), seed=1)
    assert strong < 0.05 / 160  # what Holm asks of 160 comparisons


def test_a_ratio_is_tested_by_exchanging_all_its_parts():
    tokens, right = np.array([10.0, 20.0, 30.0, 40.0]), np.array([1.0, 0.0, 1.0, 1.0])
    own = Quantity({"tokens": tokens, "right": right}, lambda m: m["tokens"] / m["right"])
    base = Quantity({"tokens": 2 * tokens, "right": right}, lambda m: m["tokens"] / m["right"])

    # of 16 exchanges only none and all are as far apart as the data
    assert swap_p(own, base, seed=1) == pytest.approx(2 / 16)


def test_equal_values_have_no_interval():
    drawn = bootstrap([mean([0.3] * 20), mean([0.7])], resamples=50, seed=1)

    assert [one.interval() for one in drawn] == [None, None]


def test_a_row_is_worse_than_the_best_only_beyond_chance():
    random = np.random.default_rng(1)
    question = random.normal(size=200)
    rows = question + random.normal(size=(4, 200))
    rows[3] -= 1.5

    assert not_worse_than_best(rows, resamples=1_000, seed=0).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("n", "rows"), [(12, 9), (60, 9)])
def test_equal_rows_keep_their_marks(n, rows):
    random = np.random.default_rng(2)
    lost = 0
    for _ in range(200):
        values = (random.normal(size=n) + random.normal(size=(rows, n)) > 0).astype(float)
        lost += not not_worse_than_best(values, resamples=300, seed=0).all()

    assert lost <= 20  # of 200: 5 % and three standard errors


def test_the_same_seed_gives_the_same_draws_whatever_is_drawn_beside():
    values, others = np.arange(50.0), np.arange(70.0)

    alone = bootstrap([mean(values)], resamples=200, seed=5)[0]
    beside = bootstrap([mean(others), mean(values)], resamples=200, seed=5)[1]
    another_seed = bootstrap([mean(values)], resamples=200, seed=6)[0]

    assert alone.values == pytest.approx(beside.values, abs=1e-12)
    assert alone.errors == pytest.approx(beside.errors, abs=1e-12)
    assert (alone.values != another_seed.values).any()


def test_quantities_over_the_same_questions_see_the_same_resamples():
    values = np.random.default_rng(0).random(40)

    first, second = bootstrap([mean(values), mean(values + 1)], resamples=300, seed=2)

    assert second.values - first.values == pytest.approx(np.ones(300))


def test_missing_values_are_left_out_of_every_resamples_mean():
    values = np.array([1.0, np.nan, 1.0, np.nan])

    drawn = bootstrap([mean(values)], resamples=500, seed=1)[0].values

    # a resample of missing questions alone has no mean: probability 2 ** -4
    assert set(drawn[~np.isnan(drawn)].tolist()) == {1.0}
    assert 10 < np.isnan(drawn).sum() < 60
    assert mean(values).value() == 1.0


def test_a_number_of_several_means_is_resampled_jointly():
    tokens, right = np.array([10.0, 30.0, 50.0]), np.array([1.0, 1.0, 0.0])
    ratio = Quantity({"tokens": tokens, "right": right}, lambda m: m["tokens"] / m["right"])

    drawn = bootstrap([ratio], resamples=400, seed=1)[0].values

    assert ratio.value() == pytest.approx(45.0)  # 30 tokens at 2 / 3 right
    # only the third question drawn three times gives 50 / 0, which is not a number to count
    assert drawn[np.isfinite(drawn)].min() == pytest.approx(10.0)


def test_no_questions_and_no_resamples_are_refused():
    with pytest.raises(ValueError, match="no questions"):
        bootstrap([mean([])], resamples=10, seed=1)
    with pytest.raises(ValueError, match="at least 1"):
        bootstrap([mean([1.0])], resamples=0, seed=1)


def test_an_undefined_number_has_no_interval():
    undefined = Quantity({"value": np.zeros(9)}, lambda means: means["value"] / means["value"])

    assert bootstrap([undefined], resamples=50, seed=1)[0].interval() is None


@pytest.mark.parametrize(("p", "n", "k"), [(0.1, 12, 1), (0.5, 50, 4), (0.9, 120, 1), (0.1, 50, 4)])
def test_intervals_of_shares_cover_the_truth(p, n, k):
    random = np.random.default_rng(3)
    covers = 0
    for _ in range(1_000):
        values = random.binomial(k, p if k == 1 else random.beta(p * 7 / 3, (1 - p) * 7 / 3, n), n)
        found = share_interval(values / k, np.full(n, float(k)))
        covers += found.low <= p <= found.high

    assert 925 <= covers <= 990  # 93 to 98 %, and what chance adds to 1,000 studies


@pytest.mark.parametrize("n", [12, 50])
def test_intervals_of_skewed_means_cover_the_truth(n):
    random = np.random.default_rng(3)
    covers = 0
    for _ in range(300):
        drawn = bootstrap([mean(random.lognormal(0, 0.5, n))], resamples=400, seed=0)[0]
        found = drawn.interval()
        covers += found.low <= np.exp(0.125) <= found.high

    assert covers >= 270  # of 300: 93 %, less two standard errors


@pytest.mark.parametrize("n", [12, 50])
def test_intervals_of_skewed_differences_cover_the_truth(n):
    random = np.random.default_rng(3)
    covers = 0
    for _ in range(600):
        own, base = random.lognormal(0, 0.5, (2, n))
        drawn = bootstrap([mean(random.lognormal(0, 0.5, n) * (own - base))], resamples=400, seed=0)
        found = drawn[0].interval_of_difference()
        covers += found.low <= 0 <= found.high

    assert 558 <= covers <= 588  # 93 to 98 % of 600


def test_the_interval_of_a_difference_reaches_as_far_as_students_t():
    values = np.array([-3.0, 0.1, 0.2, 0.4, 0.5, 9.0])
    drawn = bootstrap([mean(values)], resamples=500, seed=1)[0]
    own, found = drawn.interval(), drawn.interval_of_difference()
    low, high = stats.t.interval(0.95, 5, values.mean(), stats.sem(values))

    assert found.low == pytest.approx(min(own.low, low))
    assert found.high == pytest.approx(max(own.high, high))
    assert bootstrap([mean(np.ones(5))], resamples=9, seed=1)[0].interval_of_difference() is None


def paired_shares(random, n, only_first, only_second, both=0.4):
    """0 / 1 values of both sides, with these shares of questions that one side alone has right."""
    kinds = random.choice(
        4, n, p=[only_first, only_second, both, 1 - only_first - only_second - both]
    )
    return (np.isin(kinds, (0, 2)).astype(float), np.isin(kinds, (1, 2)).astype(float))


def share_equivalence(own, base, margin):
    ones = np.ones(len(own))
    return equivalence_p(
        lambda level: paired_share_interval(own, base, ones, ones, level=level), margin
    )


def test_the_p_value_of_equivalence_says_the_same_as_the_90_percent_interval():
    random = np.random.default_rng(4)
    ones, said = np.ones(150), set()
    for _ in range(60):
        own, base = paired_shares(random, 150, 0.06, 0.04)
        interval = paired_share_interval(own, base, ones, ones, level=0.9)
        is_within = interval.low > -0.07 and interval.high < 0.07
        said.add(is_within)

        assert (share_equivalence(own, base, 0.07) <= 0.05) == is_within

    assert said == {True, False}


def test_equivalence_of_means_is_that_of_two_one_sided_t_tests():
    apart = np.random.default_rng(2).normal(0.2, 1.0, 400)
    (drawn,) = bootstrap([mean(apart)], resamples=20_000, seed=1)

    p = equivalence_p(drawn.interval, 0.3)

    error = apart.std(ddof=1) / 20
    expected = max(
        stats.t.sf((apart.mean() + 0.3) / error, 399),
        stats.t.cdf((apart.mean() - 0.3) / error, 399),
    )
    assert p == pytest.approx(expected, rel=0.15)
    assert equivalence_p(drawn.interval, abs(apart.mean()) / 2) == 1.0


@pytest.mark.parametrize("n", [60, 300])
def test_cells_that_differ_by_the_margin_are_called_equivalent_in_5_percent_at_most(n):
    random = np.random.default_rng(n)
    margin = 0.1

    shown = sum(
        share_equivalence(*paired_shares(random, n, 0.2, 0.1), margin) <= 0.05 for _ in range(400)
    )

    # 5 %, and two standard errors of 400 studies
    assert shown / 400 <= 0.072


def test_no_interval_shows_no_equivalence():
    assert equivalence_p(lambda level: None, 1.0) is None


@pytest.mark.parametrize(
    ("n", "only_first", "only_second"),
    [(60, 0.15, 0.15), (200, 0.1, 0.1), (500, 0.02, 0.02), (120, 0.0, 0.0)],
)
def test_mcnemar_finds_the_smallest_difference_in_80_percent_of_studies(n, only_first, only_second):
    random = np.random.default_rng(n)
    apart = only_first + only_second
    least = smallest_difference(math.sqrt(apart / n), n - 1, pairs=n)
    # the same questions differ; more of them for the first side
    share = max(apart, least)

    found = 0
    for _ in range(1500):
        first, second = paired_shares(random, n, (share + least) / 2, (share - least) / 2, 0.1)
        p, test = paired_p(mean(first), mean(second), seed=0)
        assert test == "mcnemar"
        found += p < 0.05

    assert 0.77 <= found / 1500 <= 0.87


@pytest.mark.parametrize("n", [10, 80])
def test_a_paired_test_of_means_finds_the_smallest_difference_in_80_percent_of_studies(n):
    random = np.random.default_rng(n)
    least = smallest_difference(1.0 / math.sqrt(n), n - 1)

    tests = [stats.ttest_1samp(random.normal(least, 1.0, n), 0).pvalue for _ in range(2000)]
    swapped = [
        paired_p(mean(random.normal(least, 1.0, n)), mean(np.zeros(n)), seed=0)[0]
        for _ in range(150)
    ]

    assert np.mean(np.array(tests) < 0.05) == pytest.approx(0.8, abs=0.04)
    assert np.mean(np.array(swapped) < 0.05) == pytest.approx(0.8, abs=0.1)


def test_clusters_are_numbered_as_they_appear_and_single_questions_are_none():
    assert cluster_numbers(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]
    assert cluster_numbers(["b", "a", "c"]) is None


def test_the_error_of_a_mean_over_clusters_is_the_clustered_standard_error():
    values, clusters = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 4.0]), np.array([0, 0, 1, 1, 1, 2])
    # mean 7 / 6; by cluster the deviations add up to -8 / 6, -9 / 6 and 17 / 6
    by_hand = np.sqrt((8**2 + 9**2 + 17**2) / 36) / 6 * np.sqrt(3 / 2)

    drawn = bootstrap([mean(values, clusters)], resamples=10, seed=1)[0]

    assert (drawn.value, drawn.size) == (pytest.approx(7 / 6), 3)
    assert drawn.error == pytest.approx(by_hand)
    reduced = per_cluster(values, clusters)
    assert reduced.mean() == pytest.approx(7 / 6)
    assert stats.sem(reduced) == pytest.approx(by_hand)


def test_a_cluster_of_equal_questions_is_worth_one():
    clusters = np.repeat(np.arange(40), 5)
    alike = np.repeat(np.arange(40) % 2, 5).astype(float)

    found = share_interval(alike, np.ones(200), clusters)

    assert effective_clusters(clusters) == 40
    assert effective_clusters(np.array([0, 0, 0, 1])) == pytest.approx(16 / 10)
    assert found == wilson(20, 40)
    assert share_interval(np.zeros(200), np.ones(200), clusters) == wilson(0, 40)


def ratio_of(columns, clusters):
    return Quantity(columns, lambda means: means["tokens"] / means["right"], clusters)


def test_one_question_per_cluster_is_as_no_clusters():
    random = np.random.default_rng(5)
    own, base = random.random(60).round(1), random.random(60).round(1)
    zeros, ones, alone = (own > 0.6) * 1.0, np.ones(60), np.arange(60)
    tokens = np.where(random.random(60) < 0.1, np.nan, 50 * random.random(60))
    columns = {"tokens": tokens, "right": zeros}

    def of(clusters):
        quantities = [mean(own, clusters), ratio_of(columns, clusters)]
        drawn = [one.interval() for one in bootstrap(quantities, resamples=300, seed=1)]
        ends = [[one.low, one.high] for one in drawn]
        pairs = ((own, base), (zeros, (base > 0.5) * 1.0))
        tests = [paired_p(mean(a, clusters), mean(b, clusters), seed=1)[0] for a, b in pairs]
        both = np.stack([own, base, zeros])
        kept = not_worse_than_best(both, resamples=200, seed=1, clusters=clusters)
        share = share_interval(zeros, ones, clusters)
        apart = paired_share_interval(*pairs[1], ones, ones, clusters)
        seeds = over_seeds(both, clusters)
        return np.concatenate(
            [*ends, tests, kept, [share.low, share.high, apart.low, apart.high, seeds.error]]
        )

    assert of(alone) == pytest.approx(of(None), rel=1e-9)


def test_whole_clusters_are_exchanged():
    clusters = np.repeat(np.arange(6), [1, 2, 3, 1, 2, 3])
    random = np.random.default_rng(6)
    first, second = random.random(12), random.random(12) + 0.2
    sums = np.bincount(clusters, weights=first - second)
    expected = stats.permutation_test(
        (sums,), np.sum, permutation_type="samples", n_resamples=np.inf
    ).pvalue

    found = swap_p(mean(first, clusters), mean(second, clusters), seed=1)

    assert found == pytest.approx(expected)
    whole = np.repeat([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], [1, 2, 3, 1, 2, 3])
    p, test = paired_p(mean(whole, clusters), mean(0 * whole, clusters), seed=1)
    assert test == "permutation"
    assert p == pytest.approx(2 / 2**4)  # of the four clusters that differ


class Clustered:
    """Questions in 30 clusters of 1 to 10 with a correlation of 0.3 within them."""

    def __init__(self, random):
        self.random = random
        self.of = np.repeat(np.arange(30), random.integers(1, 11, 30))

    def share(self, p):
        easy = self.random.beta(p * 7 / 3, (1 - p) * 7 / 3, 30)[self.of]
        return (self.random.random(len(self.of)) < easy) * 1.0

    def normal(self):
        common, own = self.random.normal(size=30)[self.of], self.random.normal(size=len(self.of))
        return np.sqrt(0.3) * common + np.sqrt(0.7) * own


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_intervals_of_clustered_shares_cover_the_truth(p):
    random = np.random.default_rng(4)
    with_clusters = without = 0
    for _ in range(1_000):
        drawn = Clustered(random)
        values = drawn.share(p)
        ones = np.ones(len(values))
        found, narrow = share_interval(values, ones, drawn.of), share_interval(values, ones)
        with_clusters += found.low <= p <= found.high
        without += narrow.low <= p <= narrow.high

    assert 925 <= with_clusters <= 985  # 93 to 98 %, and what chance adds to 1,000 studies
    assert without < 850


def test_clustered_differences_means_and_tests_hold():
    random = np.random.default_rng(9)
    apart = skewed = rejected = lost = 0
    for _ in range(400):
        drawn = Clustered(random)
        n, common = len(drawn.of), drawn.normal()
        first, second = ((0.7 * common + 0.71 * drawn.normal() < 0) * 1.0 for _ in range(2))
        found = paired_share_interval(first, second, np.ones(n), np.ones(n), drawn.of)
        apart += found.low <= 0 <= found.high
        values = mean(np.exp(0.5 * drawn.normal()), drawn.of)
        found = bootstrap([values], resamples=400, seed=0)[0].interval()
        skewed += found.low <= np.exp(0.125) <= found.high
        rejected += swap_p(mean(first, drawn.of), mean(second, drawn.of), seed=0) < 0.05
        rows = np.stack([first, second, (common < 0) * 1.0, (drawn.normal() < 0) * 1.0])
        lost += not not_worse_than_best(rows, resamples=200, seed=0, clusters=drawn.of).all()

    assert apart >= 363  # of 400: 93 %, less two standard errors
    assert skewed >= 363
    assert rejected <= 29  # 5 %, and two standard errors
    assert lost <= 33


def test_infinite_degrees_of_freedom_are_the_normal_distribution():
    assert t_quantile(math.inf) == pytest.approx(stats.norm.ppf(0.975))
    assert t_tail(1.5, math.inf) == pytest.approx(2 * stats.norm.sf(1.5))
    assert t_tail(1.5, 1e10) == pytest.approx(t_tail(1.5, 1e8))
    with pytest.raises(ValueError, match="must be numbers"):
        t_tail(math.nan, 5)


def test_the_test_of_a_ratio_keeps_its_level_where_both_its_means_differ():
    """Tokens per right answer are the same, accuracy and length are not."""
    random = np.random.default_rng(5)
    rejected = 0
    for _ in range(400):
        sides = []
        for accuracy in (0.8, 0.2):
            right = (random.random(200) < accuracy).astype(float)
            tokens = random.gamma(4, accuracy * 25, 200)
            columns = {"tokens": tokens, "right": right}
            sides.append(Quantity(columns, lambda means: means["tokens"] / means["right"]))
        p, test = paired_p(*sides, seed=0)
        rejected += p < 0.05

    assert test == "t"
    assert rejected / 400 <= 0.06


@pytest.mark.parametrize(("questions", "accuracy"), [(120, 0.1), (50, 0.3), (120, 0.6)])
def test_the_interval_of_a_ratio_with_a_small_denominator_covers(questions, accuracy):
    random = np.random.default_rng(6)
    by_log, plain = 0, 0
    for seed in range(300):
        right = (random.random(questions) < accuracy).astype(float)
        columns = {"tokens": random.gamma(4, 25, questions), "right": right}
        ratio = Quantity(columns, lambda means: means["tokens"] / means["right"])
        (drawn,) = bootstrap([ratio], resamples=400, seed=seed)
        ends, others = drawn.interval_by_log(), drawn.interval()
        by_log += ends.low <= 100 / accuracy <= ends.high
        plain += others.low <= 100 / accuracy <= others.high

    assert 0.9 <= by_log / 300 <= 0.98
    assert accuracy > 0.5 or plain < by_log
