"""avg@k, maj@k and pass@k by hand, and in any order of the rows."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbt_cli.errors import StageError
from mbt_cli.scores.at_k import (
    avg_at_k,
    ballots,
    checked_k,
    maj_at_k,
    maj_at_k_published,
    pass_at_k,
)
from mbt_cli.scores.samples import samples_of


def frame(rows):
    """Rows of (question, sample, answer, score); a score of None is a failed rollout."""
    return pl.DataFrame(
        {
            "question_id": [row[0] for row in rows],
            "sample": [row[1] for row in rows],
            "answer": [row[2] for row in rows],
            "score": [row[3] for row in rows],
            "failure": ["http_500" if row[3] is None else None for row in rows],
        },
        schema_overrides={"score": pl.Float64, "failure": pl.String, "answer": pl.String},
    )


def parts(rows):
    table = frame(rows)
    samples = samples_of(table)
    scores = table["score"].fill_null(np.nan).to_numpy()
    votes = (table["answer"] != "").cast(pl.Float64).to_numpy()
    return samples, scores, votes, ballots(samples, table["answer"])


FOUR = [("q", 0, "x", 0.0), ("q", 1, "y", 1.0), ("q", 2, "y", 1.0), ("q", 3, "x", 0.0)]


@pytest.mark.parametrize(
    ("k", "avg", "majority", "published", "passed"),
    [
        (1, 0.0, 0.0, 0.0, 0.5),  # c = 2 of n = 4: 1 - 2/4
        (2, 0.5, 0.5, 0.0, 1 - 1 / 6),  # x and y tie; published: x was first; 1 - C(2,2)/C(4,2)
        (3, 2 / 3, 1.0, 1.0, 1.0),
        (4, 0.5, 0.5, 0.0, 1.0),
    ],
)
def test_numbers_over_k_samples_by_hand(k, avg, majority, published, passed):
    samples, scores, votes, cast = parts(FOUR)

    assert avg_at_k(samples, scores, k) == pytest.approx([avg])
    assert maj_at_k(samples, cast, scores, votes, k) == pytest.approx([majority])
    assert maj_at_k_published(samples, cast, scores, k) == pytest.approx([published])
    assert pass_at_k(samples, scores, k) == pytest.approx([passed])


def test_empty_answers_vote_in_the_published_form_only():
    samples, scores, votes, cast = parts([("q", 0, "", 0.0), ("q", 1, "", 0.0), ("q", 2, "y", 1.0)])

    assert maj_at_k(samples, cast, scores, votes, 3).tolist() == [1.0]
    assert maj_at_k_published(samples, cast, scores, 3).tolist() == [0.0]


def test_a_question_whose_samples_gave_no_answer_scores_0():
    samples, scores, votes, cast = parts([("q", 0, "", 0.0), ("q", 1, "", 0.0)])

    assert maj_at_k(samples, cast, scores, votes, 2).tolist() == [0.0]


def test_failed_samples_neither_vote_nor_count():
    rows = [("q", 0, "x", None), ("q", 1, "y", 1.0), ("r", 0, "x", None), ("r", 1, "x", None)]
    samples, scores, votes, cast = parts(rows)

    assert avg_at_k(samples, scores, 2)[0] == 1.0
    assert maj_at_k(samples, cast, scores, votes, 2)[0] == 1.0
    assert pass_at_k(samples, scores, 1)[0] == 1.0
    # pass@2 of one scored sample, and everything of a question without any, has no value
    assert math.isnan(pass_at_k(samples, scores, 2)[0])
    for values in (
        avg_at_k(samples, scores, 2),
        maj_at_k(samples, cast, scores, votes, 2),
        maj_at_k_published(samples, cast, scores, 2),
        pass_at_k(samples, scores, 1),
    ):
        assert math.isnan(values[1])


def test_pass_at_k_is_the_unbiased_formula():
    rows = [("q", number, "x", float(number < 3)) for number in range(10)]
    samples, scores, _, _ = parts(rows)

    # n = 10, c = 3: 1 - C(7, 5) / C(10, 5) = 1 - 21 / 252
    assert pass_at_k(samples, scores, 5) == pytest.approx([1 - 21 / 252])


def test_k_runs_over_powers_of_two_up_to_the_fewest_samples():
    rows = [("q", n, "x", 1.0) for n in range(7)] + [("r", n, "x", 1.0) for n in range(5)]
    samples, _, _, _ = parts(rows)

    assert checked_k(samples, None) == [1, 2, 4]
    assert checked_k(samples, [5, 3]) == [3, 5]


def test_a_k_above_the_samples_present_is_an_error_that_names_the_question():
    rows = [("q", n, "x", 1.0) for n in range(7)] + [("r", n, "x", 1.0) for n in range(5)]
    samples, _, _, _ = parts(rows)

    with pytest.raises(StageError, match="k = 6 exceeds the samples per question: `r` has 5"):
        checked_k(samples, [6])


def test_a_row_that_stands_twice_is_refused():
    with pytest.raises(StageError, match="share a key; first: question_id `q`, sample `0`"):
        samples_of(frame([("q", 0, "x", 1.0), ("q", 0, "x", 1.0)]))


def test_a_row_without_a_key_is_refused():
    with pytest.raises(StageError, match="without `question_id` or `sample`"):
        samples_of(frame([("q", None, "x", 1.0), ("q", 1, "x", 1.0)]))


def test_uneven_samples_are_grouped_like_even_ones():
    # one question with 40 samples and three with one take the other way of grouping
    rows = [("q", n, "xyz"[n % 3], float(n % 3 == 1)) for n in range(40)]
    rows += [(name, 0, "x", 1.0) for name in "rst"]
    samples, scores, votes, cast = parts(rows)

    # 14 x, 13 y, 13 z among 40: x wins with 0; the first two: x and y tie
    assert maj_at_k(samples, cast, scores, votes, 40).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert maj_at_k(samples, cast, scores, votes, 2).tolist() == [0.5, 1.0, 1.0, 1.0]
    assert len(set(cast.answer.tolist())) == 6


ANSWERS = st.sampled_from(["", "x", "y", "z"])
TABLES = st.lists(
    st.lists(st.tuples(ANSWERS, st.sampled_from([0.0, 1.0, 0.25])), min_size=4, max_size=5),
    min_size=1,
    max_size=4,
)


@given(table=TABLES, seed=st.integers(0, 99), k=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_the_order_of_rows_changes_nothing(table, seed, k):
    rows = [
        (f"q{question}", sample, answer, score)
        for question, samples in enumerate(table)
        for sample, (answer, score) in enumerate(samples)
    ]
    shuffled = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]

    first, second = parts(rows), parts(shuffled)

    for one, other in (
        (avg_at_k(first[0], first[1], k), avg_at_k(second[0], second[1], k)),
        (pass_at_k(first[0], first[1], k), pass_at_k(second[0], second[1], k)),
        (
            maj_at_k(first[0], first[3], first[1], first[2], k),
            maj_at_k(second[0], second[3], second[1], second[2], k),
        ),
        (
            maj_at_k_published(first[0], first[3], first[1], k),
            maj_at_k_published(second[0], second[3], second[1], k),
        ),
    ):
        assert one == pytest.approx(other)
