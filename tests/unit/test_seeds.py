"""Means over seeds of a training: their intervals, against scipy, by hand and by simulation."""

import json
import math

import numpy as np
import polars as pl
import pytest
from scipy import stats

from mbt_cli.core import rows
from mbt_cli.core.tables import ReportInputs
from mbt_cli.report.formats import markdown
from mbt_cli.report.seeds import merged_seeds
from mbt_cli.report.tables import MainResults, PairedDifferences
from mbt_cli.scores.seeds import difference, of_estimates, over_seeds
from mbt_cli.scores.statistics import t_quantile, t_tail

AXES = ("benchmark", "split", "model", "variant", "seed")


@pytest.mark.parametrize("degrees", [1.0, 2.0, 2.7, 11.4, 239.0, 5000.5])
def test_students_t_has_fractional_degrees_of_freedom(degrees):
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-6)
    assert t_tail(1.7, degrees) == pytest.approx(2 * stats.t.sf(1.7, degrees), rel=1e-6)


def test_the_variance_is_that_of_crossed_random_effects_by_hand():
    # means of seeds 2, 4, 9; of questions 4 and 6; mean 5; the rest is 0
    values = np.array([[1.0, 3.0], [3.0, 5.0], [8.0, 10.0]])

    found = over_seeds(values)

    # S_q = 2 over n = 2; S_s = 13 over k = 3; Satterthwaite: V^2 / (1^2 / 1 + (13 / 3)^2 / 2)
    assert found.value == 5.0
    assert found.error == pytest.approx(math.sqrt(1 + 13 / 3))
    assert found.degrees == pytest.approx((16 / 3) ** 2 / (1 + (13 / 3) ** 2 / 2))


def test_seeds_that_differ_by_chance_alone_add_nothing():
    values = np.array([[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]])  # equal means

    assert over_seeds(values).error == 0.0
    assert difference(values[:1], np.zeros((1, 4))).error == pytest.approx(
        np.std([0, 1, 0, 1], ddof=1) / 2
    )


def test_the_error_of_summaries_adds_seeds_and_questions():
    found = of_estimates([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], questions=50)

    assert found.value == 2.0
    assert found.error == pytest.approx(math.sqrt(1 / 3 + 0.25))


def test_clusters_take_the_place_of_questions():
    # clusters of 1 and 3 questions; each seed answers a cluster alike
    values, clusters = np.array([[2.0, 4, 4, 4], [4.0, 6, 6, 6]]), np.array([0, 1, 1, 1])

    found = over_seeds(values, clusters)

    # by cluster 4.5 + 2 / 4 * (-1.5, 1.5) for both seeds, which differ by 2 more
    assert found.value == 4.5
    assert found.error == pytest.approx(math.sqrt(1.5**2 / 2 / 2 + 2 / 2))
    assert difference(values, values - 1, clusters).value == 1.0


def studies(random, *, questions, share, seed_spread, seeds=3):
    """0 / 1 values of seeds and questions; both shift the log-odds of a right answer."""
    hard = random.normal(size=(1, questions)) * 1.5
    luck = random.normal(size=(seeds, 1)) * seed_spread
    odds = np.log(share / (1 - share)) + hard + luck
    return (random.random((seeds, questions)) < 1 / (1 + np.exp(-odds))).astype(float)


def truth(random, share, seed_spread):
    odds = np.log(share / (1 - share)) + random.normal(size=400_000) * np.hypot(1.5, seed_spread)
    return float((1 / (1 + np.exp(-odds))).mean())


@pytest.mark.parametrize("questions", [60, 240])
@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("seed_spread", [0.0, 0.2])  # 0.2: seeds differ by 3 points at 50 %
def test_the_interval_of_three_seeds_covers(questions, share, seed_spread):
    random = np.random.default_rng(7)
    true = truth(random, share, seed_spread)
    covered = 0
    for _ in range(600):
        values = studies(random, questions=questions, share=share, seed_spread=seed_spread)
        found = over_seeds(values).share_interval(questions=questions, samples=values.size)
        covered += found.low <= true <= found.high

    # 600 studies put a standard error of 0.9 points on 95 %
    assert 0.92 <= covered / 600 <= 0.99


def test_equal_trainings_are_rarely_called_different():
    random = np.random.default_rng(8)
    rejected = 0
    for _ in range(600):
        odds = random.normal(size=(1, 120)) * 1.5 + random.normal(size=(6, 1)) * 0.2
        values = (random.random((6, 120)) < 1 / (1 + np.exp(-odds))).astype(float)
        p = difference(values[:3], values[3:]).p()
        rejected += p is not None and p < 0.05

    assert rejected / 600 <= 0.075


def test_one_seed_of_a_training_varies_as_those_of_the_other_side():
    random = np.random.default_rng(9)
    rejected = {True: 0, False: 0}
    for _ in range(600):
        odds = random.normal(size=(1, 400)) * 1.5 + random.normal(size=(6, 1)) * 0.2
        values = (random.random((6, 400)) < 1 / (1 + np.exp(-odds))).astype(float)
        for is_drawn in rejected:
            p = difference(values[:1], values[1:], drawn=(is_drawn, True)).p()
            rejected[is_drawn] += p is not None and p < 0.05

    assert rejected[True] / 600 <= 0.075
    # without it, equal trainings are called different too often
    assert rejected[False] / 600 >= 0.12


def cell(variant, seed):
    end = f"/seed={seed}" if seed else ""
    return f"scores/benchmark=tiny/split=dev/model=m/variant={variant}{end}"


def summary(values, **more):
    """Rows of summaries of exact_match, from (variant, seed) to values per question."""
    found = []
    for (variant, seed), column in values.items():
        axes = {"benchmark": "tiny", "split": "dev", "model": "m", "variant": variant, "seed": seed}
        mean = float(np.mean(column))
        found.append(
            {
                **dict.fromkeys(rows.SUMMARY), "address": cell(variant, seed), **axes,
                "metric": "exact_match", "value": mean, "low": mean - 0.1, "high": mean + 0.1,
                "n": len(column), "failed": 1, "unit": "percent",
                "settings": '{"interval":"wilson"}', **more,
            }
        )  # fmt: skip
    return pl.DataFrame(
        found, schema={**rows.SUMMARY, **dict.fromkeys(("address", *AXES), pl.String())}
    )


def report(values, per_cluster=None, **more):
    long = [
        {"address": cell(*key), "metric": "exact_match", "question_id": f"q{n}", "value": value}
        | {"seed": key[1], "n": int(value is not None), "failed": int(value is None)}
        | {"cluster": per_cluster and f"d{n // per_cluster}"}
        for key, column in values.items()
        for n, value in enumerate([*column, None])
    ]
    texts = dict.fromkeys(("address", "seed", "cluster"), pl.String())
    scores = pl.LazyFrame(long, schema={**texts, **rows.SCORES})
    return ReportInputs(summary=summary(values, **more), scores=scores, axes=AXES)


def test_a_number_that_is_no_share_has_no_interval_where_nothing_spreads():
    values = {("sft", str(seed)): np.zeros(20) for seed in (1, 2, 3)}

    (share,) = merged_seeds(report(values)).summary.rows(named=True)
    (mean,) = merged_seeds(report(values, settings="{}")).summary.rows(named=True)

    assert (share["low"], mean["low"]) == (0.0, None)
    assert 0 < share["high"] < 0.2
    assert mean["high"] is None


def test_an_interval_is_around_the_number_that_is_shown():
    """The questions that a seed lacks are the hard ones: they count in the mean."""
    easy, hard = [1.0] * 112, [0.0] * 8
    values = {
        ("sft", "1"): easy + hard,
        ("sft", "2"): easy + hard,
        ("sft", "3"): [*easy[:110], 0.0],
    }

    (row,) = merged_seeds(report(values)).summary.rows(named=True)

    assert row["low"] < row["value"] < row["high"]


def test_seeds_that_share_few_questions_have_no_interval():
    values = {
        ("sft", "1"): drawn(0.5, 1),
        ("sft", "2"): drawn(0.5, 2),
        ("sft", "3"): [1.0, 0.0] * 15,
    }

    (row,) = merged_seeds(report(values)).summary.rows(named=True)

    assert (row["low"], row["high"]) == (None, None)
    assert json.loads(row["settings"])["no_interval"] == "the seeds share 30 of 60 questions"


def drawn(share, seed):
    return (np.random.default_rng(seed).random(60) < share).astype(float)


def test_a_table_has_one_row_for_all_seeds_of_a_training():
    values = {("sft", str(seed)): drawn(0.6, seed) for seed in (1, 2, 3)}
    values[("base", None)] = drawn(0.1, 9)

    table = MainResults().build(merged_seeds(report(values)))

    text = markdown(table)
    assert table.rows["variant"].to_list() == ["sft", "base"]
    assert table.rows["seeds"].to_list() == [3, 1]
    assert table.rows["failed"].to_list() == [3, 1]
    sft = np.stack([values["sft", str(seed)] for seed in (1, 2, 3)])
    expected = over_seeds(sft).share_interval(questions=60, samples=180.0)
    first = table.rows.row(0, named=True)
    assert first["exact_match"] == pytest.approx(sft.mean())
    assert (first["exact_match_low"], first["exact_match_high"]) == pytest.approx(
        (expected.low, expected.high)
    )
    assert "| seeds |" in text
    assert "the intervals count seeds and questions" in text
    assert table.rows["exact_match_tied"].to_list() == [False, False]


def test_the_seeds_of_clustered_questions_have_wider_intervals_and_more_marks():
    # of 12 documents, four are right in `a` alone and one in `b` alone
    alike = {"a": [1.0] * 9 + [0.0] * 3, "b": [1.0] * 5 + [0.0] * 4 + [1.0] + [0.0] * 2}
    noise = np.random.default_rng(2)
    values = {
        (variant, str(seed)): np.abs(np.repeat(right, 5) - (noise.random(60) < 0.05))
        for variant, right in alike.items()
        for seed in (1, 2, 3)
    }
    settings = '{"cluster":"metadata.document","clusters":12,"interval":"wilson"}'

    alone = MainResults().build(merged_seeds(report(values)))
    table = MainResults().build(merged_seeds(report(values, 5, settings=settings)))

    def widths(table):
        return (table.rows["exact_match_high"] - table.rows["exact_match_low"]).to_list()

    for wide, narrow in zip(widths(table), widths(alone), strict=True):
        assert wide > 1.5 * narrow
    assert alone.rows["exact_match_tied"].to_list() == [False, False]
    assert table.rows["exact_match_tied"].to_list() == [False, True]
    (note,) = [note for note in table.notes if "cluster" in note]
    assert "the same metadata.document are one cluster: 60 questions in 12 clusters" in note


def test_seeds_that_scatter_keep_the_mark_that_questions_alone_would_take():
    apart = {"1": 0.2, "2": 0.5, "3": 0.9}
    values = {("a", seed): drawn(share, 3) for seed, share in apart.items()}
    values |= {("b", seed): drawn(share - 0.1, 3) for seed, share in apart.items()}

    table = MainResults().build(merged_seeds(report(values)))

    assert table.rows["exact_match_tied"].to_list() == [False, True]


def test_the_difference_of_seeds_from_a_baseline_has_an_interval_and_a_test():
    values = {("sft", str(seed)): drawn(0.6, seed) for seed in (1, 2, 3)}
    own = {"baseline": 0.1, "difference": 0.5, "difference_low": 0.4, "difference_high": 0.6}
    inputs = report(values, **own, p=0.001)

    table = PairedDifferences().build(merged_seeds(inputs))

    row = table.rows.row(0, named=True)
    assert row["exact_match"] == pytest.approx(0.5)
    assert row["exact_match_low"] == pytest.approx(0.4, abs=0.003)
    assert row["exact_match_p"] < 1e-6


def test_the_interval_of_a_difference_of_shares_ends_at_100_points():
    values = {("sft", str(seed)): np.ones(20) for seed in (1, 2, 3)}
    own = {"baseline": 0.05, "difference": 0.95, "difference_low": 0.7, "difference_high": 1.2}

    (row,) = merged_seeds(report(values, **own)).summary.rows(named=True)

    assert row["difference_high"] == 1.0
    assert row["difference_low"] < 0.95


def test_missing_seeds_are_counted_and_one_seed_changes_nothing():
    values = {("sft", str(seed)): drawn(0.6, seed) for seed in (1, 2)}
    inputs = report(values)
    lacking = ReportInputs(
        summary=inputs.summary,
        scores=inputs.scores,
        axes=AXES,
        missing=[cell("sft", "3"), cell("other", "1"), cell("other", "2")],
    )

    merged = merged_seeds(lacking)

    assert (merged.missing, merged.missing_seeds) == ([cell("other", None)], 1)
    assert "1 seed is not run yet" in markdown(MainResults().build(merged))
    one = report({("sft", "1"): drawn(0.6, 1)})
    assert merged_seeds(one) is one
