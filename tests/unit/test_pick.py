"""The samples that a training picks by their values in score cells."""

import polars as pl
import pytest

from mbt_cli.stages.pick import Pick, paired, picked

SAMPLES = pl.LazyFrame(
    [
        ("s1", "b", 0, "brier", 0.1),
        ("s1", "a", 1, "brier", 0.1),
        ("s1", "a", 0, "brier", 0.4),
        ("s1", "b", 1, "brier", None),
        ("s1", "c", 0, "brier", 0.9),
        ("s2", "a", 0, "brier", 0.4),
        ("s1", "c", 0, "exact_match", 0.0),
        ("s1", "a", 1, "exact_match", 1.0),
    ],
    schema={
        "address": pl.String,
        "question_id": pl.String,
        "sample": pl.Int64,
        "metric": pl.String,
        "value": pl.Float64,
    },
    orient="row",
)


def keys(**choice):
    one = Pick(scores="scores", **{"metric": "brier", **choice})
    return picked(SAMPLES, one).select("address", "question_id", "sample").collect().rows()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        # five values: a share is rounded up, lower sample numbers go first, less is better
        ({"best": 0.2}, [("s1", "b", 0)]),
        ({"best": 0.5}, [("s1", "b", 0), ("s1", "a", 1), ("s1", "a", 0)]),
        ({"worst": 0.3}, [("s1", "c", 0), ("s1", "a", 0)]),
        ({"between": [0.4, 0.5]}, [("s1", "a", 0), ("s2", "a", 0)]),
        # a question of another cell is another question
        ({"best": 1, "per_question": 1}, [(*k, n) for *k, n in (
            ("s1", "b", 0), ("s1", "a", 1), ("s2", "a", 0), ("s1", "c", 0))]),
        ({"best": 1, "per_question": 1, "at_most": 2}, [("s1", "b", 0), ("s1", "a", 1)]),
        ({"metric": "exact_match", "best": 0.5}, [("s1", "a", 1)]),  # more is better
        ({"metric": "exact_match", "worst": 0.5}, [("s1", "c", 0)]),
    ],
)  # fmt: skip
def test_samples_are_picked_by_value_then_by_question_then_in_all(choice, expected):
    assert keys(**choice) == expected


@pytest.mark.parametrize(("share", "count"), [(0.07, 7), (0.1, 10), (0.29, 29), (0.301, 31)])
def test_a_share_is_exact_and_rounded_up(share, count):
    many = pl.LazyFrame(
        {
            "address": "s",
            "question_id": [f"q{n}" for n in range(100)],
            "sample": 0,
            "metric": "brier",
            "value": [n / 100 for n in range(100)],
        }
    )

    found = picked(many, Pick(scores="s", metric="brier", best=share)).collect()

    assert found["value"].to_list() == [n / 100 for n in range(count)]


@pytest.mark.parametrize(
    ("choice", "key"),
    [
        ({"metric": "pass@1", "best": 1}, "metric"),
        ({"metric": "features_words", "worst": 0.1}, "worst"),
        ({"metric": "features_words", "between": [10, 20]}, None),
        ({"metric": "judge_accuracy:gpt", "best": 0.1}, None),
    ],
)
def test_a_metric_must_have_values_of_samples_and_a_better_end(choice, key):
    found = [where for where, _ in Pick(scores="s", **choice).problems(pairs=False)]

    assert found == ([] if key is None else [key])


def values(**questions):
    rows = [("c", name, n, value) for name, own in questions.items() for n, value in enumerate(own)]
    schema = ["source", "question_id", "sample", "value"]
    return pl.DataFrame(rows, schema=schema, orient="row")


@pytest.mark.parametrize(
    ("metric", "most", "expected"),
    [
        # the best against the worst, lower sample numbers first; those that differ most first
        ("exact_match", None, [("c", "b", 1, 0), ("c", "a", 2, 0)]),
        ("brier", None, [("c", "b", 0, 1), ("c", "a", 0, 2)]),
        ("exact_match", 1, [("c", "b", 1, 0)]),
    ],
)
def test_a_pair_is_the_best_and_the_worst_reply_where_they_differ(metric, most, expected):
    known = values(
        a=[0.1, 0.1, 0.5, 0.5], b=[0.0, 1.0], equal=[1.0, 1.0], one=[0.3], lost=[None, 0.5]
    )

    found = paired(known, Pick(scores="s", metric=metric, at_most=most))

    assert found.rows() == expected


def test_replies_of_two_cells_are_no_pair():
    known = values(a=[0.1, 0.9]).with_columns(source=pl.Series(["c", "d"]))

    assert paired(known, Pick(scores="s", metric="brier")).is_empty()


def test_pairs_need_a_metric_with_a_better_end_and_no_share():
    for choice, keys in (
        ({"metric": "features_words"}, ["metric"]),
        ({"metric": "brier", "best": 0.5, "per_question": 1}, ["best", "per_question"]),
        ({"metric": "brier", "at_most": 3}, []),
    ):
        found = Pick(scores="s", **choice).problems(pairs=True)
        assert [key for key, _ in found] == keys
