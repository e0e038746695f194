"""Summary rows, paired differences, and the comparison of two cells."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.measures import Measure, QuestionClusters
from mbt_cli.scores.comparison import METRICS, Margins, compare
from mbt_cli.scores.summaries import summarise_all
from tests.unit.scoring import summarise


def measure(values, *, ids=None, metric="exact_match", **more):
    ids = ids or [f"q{i}" for i in range(len(values))]
    questions = pl.DataFrame(
        {
            "question_id": ids,
            "n": [int(v is not None) for v in values],
            "failed": [int(v is None) for v in values],
            "value": values,
        },
        schema_overrides={"value": pl.Float64},
    )
    return Measure(metric=metric, unit="percent", questions=questions, **more)


def clustered(values, names, **more):
    one = measure(values, **more)
    ids = one.questions["question_id"]
    clusters = pl.DataFrame({"question_id": ids, "cluster": names})
    return QuestionClusters("metadata.document", clusters).on(one)


def ratio(means):
    return means["tokens"] / means["right"]


def test_a_summary_has_the_columns_and_counts_of_its_schema():
    row = summarise(measure([1.0, 0.5, None]), resamples=100, seed=1)

    frame = pl.DataFrame([row], schema=rows.SUMMARY)
    assert frame.columns == rows.SUMMARY.names()
    assert (row["value"], row["n"], row["failed"]) == (0.75, 2, 1)
    assert row["low"] < 0.5
    assert row["high"] == 1.0
    assert row["baseline"] is None


def test_an_interval_of_tokens_begins_at_none():
    tokens = replace(measure([40.0, 40.0, 41.0, 40.0, 40.0, 39.0, 40.0, 2.0]), unit="tokens")

    row = summarise(tokens, resamples=2_000, seed=1)
    free = summarise(replace(tokens, unit="points"), resamples=2_000, seed=1)

    # resamples without the 2 have nearly no spread: without a floor their t is millions
    assert -150 < free["low"] < 0
    assert (row["low"], row["high"]) == (0, free["high"])


def test_the_interval_of_a_share_of_items_counts_questions_as_clusters():
    """4 of 34 instructions, as 2 prompts of 3 and 3, and 14 of 1 and 7 of 2 follow none."""
    of = [3.0, 3.0] + [1.0] * 14 + [2.0] * 7
    right = [2.0, 2.0] + [0.0] * 21
    questions = pl.DataFrame(
        {
            "question_id": [f"q{n}" for n in range(23)],
            "n": [1] * 23,
            "failed": [0] * 23,
            "right": right,
            "of": of,
        }
    )
    share = Measure(
        "followed", "percent", questions, lambda m: m["right"] / m["of"], items=("right", "of")
    )

    row = summarise(share, resamples=500, seed=1)
    base = share.questions.with_columns(right=pl.Series([3.0] + [0.0] * 22))
    paired = summarise(share, baseline=replace(share, questions=base), resamples=500, seed=1)

    assert row["value"] == pytest.approx(4 / 34)
    # by Wilson, 34 independent instructions would give 4.7 to 26.6 %
    assert 0 < row["low"] < 0.047
    assert 0.266 < row["high"] < 0.5
    assert json.loads(row["settings"])["interval"] == "wilson"
    assert paired["difference"] == pytest.approx(1 / 34)
    assert paired["difference_low"] < 0 < paired["difference_high"]


def test_the_difference_is_over_common_questions_whatever_their_order():
    own = measure([1.0, 1.0, 0.0, 1.0], ids=["a", "b", "c", "only own"])
    base = measure([0.0, 0.0, 1.0, 0.0], ids=["c", "b", "a", "only base"])

    row = summarise(own, baseline=base, resamples=200, seed=1)

    # on a, b, c: own 1 1 0, baseline 1 0 0
    assert row["value"] == 0.75
    assert row["baseline"] == pytest.approx(1 / 3)
    assert row["difference"] == pytest.approx(1 / 3)
    assert json.loads(row["settings"]) == {
        "interval": "wilson",
        "paired_questions": 3,
        "test": "mcnemar",
    }


def test_values_of_zero_and_one_are_a_share_whatever_the_metric_calls_them():
    """`pass@1` of one sample has the interval of `exact_match`."""
    values = [0.0] * 59 + [1.0]
    called, found = measure(values, binary=True), measure(values, metric="pass@1")
    base = measure([0.0] * 60, metric="pass@1")

    rows_ = [summarise(one, baseline=base, resamples=50, seed=1) for one in (called, found)]

    ends = [[row[k] for k in ("low", "high", "difference_low", "difference_high")] for row in rows_]
    assert ends[0] == ends[1]
    assert ends[0][0] > 0


@pytest.mark.parametrize("which", ["own", "base"])
def test_a_pair_counts_the_clusters_that_one_side_names(which):
    names = [f"d{k % 4}" for k in range(24)]
    random = np.random.default_rng(1)
    sides = {side: random.random(24).round(2).tolist() for side in ("own", "base")}
    measures = {side: measure(values) for side, values in sides.items()}
    measures[which] = clustered(sides[which], names)

    row = summarise(measures["own"], baseline=measures["base"], resamples=200, seed=1)

    assert json.loads(row["settings"])["paired_clusters"] == 4


def test_zero_one_measures_are_tested_by_mcnemar():
    own = measure([1.0] * 6 + [0.0], binary=True)
    base = measure([0.0] * 5 + [1.0, 1.0], binary=True)

    row = summarise(own, baseline=base, resamples=50, seed=1)

    # own alone right 5 times, the baseline alone once: 2 * (1 + 6) / 2 ** 6
    assert row["p"] == pytest.approx(0.21875)
    assert json.loads(row["settings"])["test"] == "mcnemar"


def test_means_over_several_samples_are_tested_by_permutation():
    own, base = measure([0.5, 1.0], binary=True), measure([0.0, 1.0], binary=True)

    row = summarise(own, baseline=base, resamples=50, seed=1)

    assert json.loads(row["settings"])["test"] == "permutation"


def test_the_interval_of_a_difference_is_that_of_pairs_not_of_two_samples():
    random = np.random.default_rng(0)
    base = random.random(200)
    own = measure((base + 0.1 + random.normal(0, 0.001, 200)).tolist())

    row = summarise(own, baseline=measure(base.tolist()), resamples=200, seed=1)

    assert row["difference_low"] == pytest.approx(0.1, abs=0.001)
    assert row["difference_high"] == pytest.approx(0.1, abs=0.001)
    assert row["high"] - row["low"] > 0.05


def test_a_cell_against_itself_differs_by_nothing():
    own = measure(np.random.default_rng(0).random(30).tolist())

    row = summarise(own, baseline=own, resamples=200, seed=1)

    assert row["difference"] == 0.0
    assert row["p"] == 1.0


def test_a_measure_without_any_value_has_no_number():
    row = summarise(measure([None, None]), baseline=measure([1.0, 0.0]), resamples=50, seed=1)

    assert [row[k] for k in ("value", "low", "high", "difference", "p")] == [None] * 5
    assert (row["n"], row["failed"]) == (0, 2)


def test_resamples_in_which_a_ratio_is_undefined_are_left_out_and_said():
    questions = pl.DataFrame(
        {
            "question_id": ["a", "b"],
            "n": [1, 1],
            "failed": [0, 0],
            "tokens": [10.0, 30.0],
            "right": [1.0, 0.0],
        }
    )
    row = summarise(Measure("cost", "tokens", questions, ratio), resamples=400, seed=1)

    # b drawn twice (a quarter of the resamples): 30 / 0
    assert row["value"] == pytest.approx(40.0)
    assert 0.15 < json.loads(row["settings"])["undefined_resamples"] < 0.35


def test_what_is_summarised_beside_changes_nothing():
    first, second = measure([1.0, 0.0, 1.0]), measure([0.5, 0.25], metric="other")

    together = summarise_all([(first, None), (second, first)], resamples=100, seed=3)

    assert together[0] == summarise(first, resamples=100, seed=3)
    assert together[1] == summarise(second, baseline=first, resamples=100, seed=3)


def test_a_comparison_says_who_alone_was_right_and_where_they_differ_most():
    first = [measure([1.0, 1.0, 0.0, 1.0], binary=True), measure([0.9] * 4, metric="f1_score")]
    second = [measure([0.0, 1.0, 1.0, 0.0], binary=True), measure([0.5], metric="alone")]

    found = compare(first, second, resamples=200, seed=1)

    assert found.metrics.schema == METRICS
    (row,) = found.metrics.to_dicts()
    assert (row["first"], row["second"], row["difference"]) == (0.75, 0.5, 0.25)
    assert (row["first_better"], row["second_better"], row["equal"]) == (2, 1, 1)
    assert row["p"] == 1.0  # 2 * (1 + 3) / 2 ** 3
    assert row["test"] == "mcnemar"
    assert found.questions.rows() == [
        ("exact_match", "q0", 1.0, 0.0, 1.0),
        ("exact_match", "q2", 0.0, 1.0, -1.0),
        ("exact_match", "q3", 1.0, 0.0, 1.0),
        ("exact_match", "q1", 1.0, 1.0, 0.0),
    ]


def test_p_values_of_a_comparison_are_corrected_over_its_metrics():
    size = 12
    first = [measure([1.0] * size, metric=name, binary=True) for name in ("a", "b")]
    second = [
        measure([0.0] * size, metric="a", binary=True),
        measure([0.0] * 6 + [1.0] * 6, metric="b", binary=True),
    ]

    found = compare(first, second, resamples=100, seed=1)

    # exact: 2 / 2 ** 12 and 2 / 2 ** 6; Holm doubles the smaller one
    assert found.metrics["p"].to_list() == pytest.approx([2 / 4096, 2 / 64])
    assert found.metrics["p_holm"].to_list() == pytest.approx([4 / 4096, 2 / 64])


def test_cells_without_common_questions_have_nothing_to_compare():
    found = compare([measure([1.0], ids=["a"])], [measure([1.0], ids=["b"])], resamples=10, seed=1)

    assert found.metrics.is_empty()
    assert found.questions.is_empty()


def test_a_difference_says_why_it_has_no_interval_and_what_its_interval_leaves_out():
    own = measure([0.5, 0.25, 0.75], metric="f1_score")
    same = summarise(own, baseline=own, resamples=100, seed=1)
    questions = pl.DataFrame(
        {
            "question_id": ["a", "b"], "n": [1, 1], "failed": [0, 0],
            "tokens": [10.0, 30.0], "right": [1.0, 0.0],
        }
    )  # fmt: skip
    cost = Measure("cost", "tokens", questions, ratio)
    other = Measure("cost", "tokens", questions.with_columns(right=pl.lit(1.0)), ratio)
    undefined = summarise(cost, baseline=other, resamples=400, seed=1)

    assert same["difference_low"] is None
    settings = json.loads(same["settings"])
    assert settings["no_interval_of_difference"] == "every question has the same value"
    # b drawn twice (a quarter of the resamples): 30 / 0 on one side
    assert 0.15 < json.loads(undefined["settings"])["undefined_resamples_of_difference"] < 0.35


def test_equal_replies_of_several_samples_give_no_interval_of_no_width():
    # half right: both Wilson intervals are symmetric, so Newcombe's difference has no width
    own = measure([1.0, 0.0, 0.5, 0.5], binary=True)
    own = replace(own, questions=own.questions.with_columns(n=pl.lit(2)))

    row = summarise(own, baseline=own, resamples=100, seed=1)

    assert (row["difference"], row["difference_low"], row["difference_high"]) == (0.0, None, None)


def test_p_values_of_equivalence_are_corrected_over_the_metrics_tested():
    names = ("a", "b", "judge_unread", "c")
    first = [measure([1.0, 0.0] * 30, metric=name, binary=True) for name in names]

    margins = Margins(common=4.0, own={"c": 5.0})
    rows = compare(first, first, resamples=100, seed=1, margins=margins).metrics
    alone = compare(first, first, resamples=100, seed=1, margins=Margins(own={"a": 4.0})).metrics

    p, held = rows["p_equivalent"].to_list(), rows["p_equivalent_holm"].to_list()
    assert rows["margin"].to_list() == [0.04, 0.04, 0.04, 0.05]
    assert p[0] == p[1] == p[2] > p[3]
    # three metrics, the smallest first; that about the judge is left out
    assert held == pytest.approx([2 * p[0], 2 * p[0], None, 3 * p[3]])
    assert alone["p_equivalent_holm"].to_list() == [p[0], None, None, None]


@pytest.mark.parametrize("binary", [True, False])
def test_clusters_widen_intervals_and_are_counted(binary):
    values, base = [1.0, 1.0, 0.0, 0.0] * 5, [0.0, 0.0, 0.0, 1.0] * 5
    names = [f"d{i // 2}" for i in range(20)]

    alone = summarise(measure(values, binary=binary), baseline=measure(base), resamples=200, seed=1)
    row = summarise(
        clustered(values, names, binary=binary), baseline=measure(base), resamples=200, seed=1
    )

    assert row["high"] - row["low"] > alone["high"] - alone["low"]
    assert (row["value"], row["difference"]) == (alone["value"], alone["difference"])
    settings = json.loads(row["settings"])
    assert (settings["cluster"], settings["clusters"]) == ("metadata.document", 10)
    assert (settings["test"], settings["paired_clusters"]) == ("permutation", 10)
    assert json.loads(alone["settings"])["test"] == "mcnemar"


def test_one_question_per_cluster_gives_the_same_row():
    values, base = [1.0, 0.0, 0.25, 1.0, 0.5] * 4, [0.0, 0.0, 1.0, 1.0, 0.5] * 4

    plain = summarise(measure(values), baseline=measure(base), resamples=200, seed=1)
    row = summarise(
        clustered(values, [f"d{i}" for i in range(20)]),
        baseline=clustered(base, ["any"] * 20),
        resamples=200,
        seed=1,
    )

    assert {**row, "settings": None} == {**plain, "settings": None}
    assert json.loads(row["settings"])["clusters"] == 20


def test_equal_values_in_one_cluster_have_a_reason_for_no_interval():
    row = summarise(clustered([0.5, 0.7], ["d", "d"]), resamples=100, seed=1)

    assert (row["low"], json.loads(row["settings"])["no_interval"]) == (None, "one cluster")


def test_a_comparison_counts_clusters():
    first = [clustered([1.0, 1.0, 0.0, 1.0], ["a", "a", "b", "b"], binary=True)]
    second = [measure([0.0, 0.0, 0.0, 0.0], binary=True)]

    (row,) = compare(first, second, resamples=100, seed=1).metrics.to_dicts()

    assert (row["questions"], row["clusters"], row["test"]) == (4, 2, "permutation")
    assert row["p"] == pytest.approx(2 / 4)
