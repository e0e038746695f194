"""Answer measures over whole frames are the single-value rules, row by row."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbt_cli.verifiers.text import (
    answer_metrics,
    containment,
    exact_match,
    f1_score,
    normalise,
    normalised,
    question_numbers,
)
from tests.unit.published import OFFICIAL, official, substring_match

WORDS = ["a", "the", "an", "Oslo", "oslo", "b", "B.", "new", "York", "yes", "no", "noanswer"]
CONTROLS = ["\0", "\x01", "\x7f", "\x85", "\xa0", "\t", "\r\n", "\u2028"]
ODD = ["\u00e9", "e\u0301a", "\u2013the", "_", "\u3000", "\x1f", "\u00bd", "\u5317\u4eac", "\u0130"]
TEXTS = st.lists(st.sampled_from(WORDS + ODD + CONTROLS), max_size=5).map(" ".join)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, st.lists(TEXTS, max_size=3)), min_size=1, max_size=12)


def rollouts(cases):
    return pl.DataFrame(
        {
            "question_id": [f"q{number}" for number in range(len(cases))],
            "answer": [case[0] for case in cases],
            "gold_answer": [case[1] for case in cases],
            "gold_aliases": [case[2] for case in cases],
            "failure": [None] * len(cases),
        },
        schema_overrides={
            "answer": pl.String,
            "gold_answer": pl.String,
            "gold_aliases": pl.List(pl.String),
            "failure": pl.String,
        },
    )


@given(st.lists(TEXTS | st.text(max_size=8), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_normalising_a_column_is_normalising_each_text(texts):
    out = normalised(pl.Series(texts, dtype=pl.String)).to_list()

    assert out == [normalise(text) for text in texts]


@pytest.mark.parametrize("benchmark", ["hotpotqa", "2wikimultihopqa", "musique"])
@given(cases=ROWS)
@settings(max_examples=40, deadline=None)
def test_every_measure_of_a_frame_is_that_of_each_row(benchmark, cases):
    found = answer_metrics(rollouts(cases), OFFICIAL[benchmark])

    for row, (prediction, gold, aliases) in zip(found.to_dicts(), cases, strict=True):
        references = [gold, *aliases]
        rules = official(benchmark, prediction, gold, aliases)
        answered = prediction != ""
        assert row["exact_match"] == exact_match(prediction, references)
        assert row["substring_match"] == substring_match(prediction, references)
        assert row["containment"] == containment(prediction, references)
        assert row["f1_score"] == f1_score(prediction, references)
        assert row["official_exact_match"] == rules.exact_match * answered
        assert row["official_f1"] == pytest.approx(rules.f1 * answered)


def test_every_measure_of_twenty_thousand_odd_rows_is_that_of_each_row():
    random = np.random.default_rng(0)
    pool = [*WORDS, *["of"] * 20, "new", "new york", *ODD, *CONTROLS]
    joins = [" ", " ", " ", "", ", "]

    def text():
        words = random.choice(pool, random.integers(0, 6))
        return str(random.choice(joins)).join(words.tolist())

    cases = [(text(), text(), [text() for _ in range(random.integers(3))]) for _ in range(20_000)]
    found = answer_metrics(rollouts(cases), None)

    for (prediction, gold, aliases), row in zip(cases, found.to_dicts(), strict=True):
        references = [gold, *aliases]
        assert row["normalised"] == normalise(prediction)
        assert row["exact_match"] == exact_match(prediction, references)
        assert row["substring_match"] == substring_match(prediction, references)
        assert row["containment"] == containment(prediction, references)
        assert row["f1_score"] == f1_score(prediction, references)
    # rows are scored in several pieces, and in any order
    many = rollouts(cases * 7).with_columns(
        question_id=pl.Series([f"q{i}" for i in range(20_000)] * 7)
    )
    order = random.permutation(len(many))
    assert answer_metrics(many[order], None).equals(pl.concat([found] * 7)[order])


def test_a_null_text_stays_null_whatever_the_length_of_the_others():
    for long in ("The end", "The end " * 100):
        assert normalised(pl.Series([None, long, "a", None])).to_list() == [
            None, normalise(long), "", None,
        ]  # fmt: skip


@pytest.mark.parametrize("one", ["Oslo", "oslo bay"])
def test_rows_of_one_question_apart_from_each_other_are_of_one_question(one):
    ids, numbers = question_numbers(pl.Series(["b", "b", "a", one, "b"]))

    assert ids.to_list() == sorted({"a", "b", one})
    assert [ids[int(number)] for number in numbers] == ["b", "b", "a", one, "b"]


def test_a_reply_without_an_answer_scores_0_even_against_a_gold_answer_of_nothing():
    frame = rollouts([(None, "the", []), ("", "the", []), ("an", "the", [])])

    found = answer_metrics(frame, OFFICIAL["musique"])

    # `an` against `the` is equal for MuSiQue; no answer at all is wrong by definition
    assert found["official_exact_match"].to_list() == [0.0, 0.0, 1.0]


def test_a_failed_rollout_and_a_question_without_gold_have_no_value():
    frame = rollouts([("Oslo", "Oslo", []), ("Oslo", None, None), ("Oslo", "Oslo", None)])
    frame = frame.with_columns(failure=pl.Series(["http_400", None, None]))

    found = answer_metrics(frame, OFFICIAL["hotpotqa"])

    assert found["exact_match"].to_list() == [None, None, 1.0]


def test_without_an_official_scorer_there_is_no_official_value():
    found = answer_metrics(rollouts([("7", "7", [])]), None)

    assert found["official_f1"].to_list() == [None]
    assert found["exact_match"].to_list() == [1.0]


def test_a_frame_without_rows_gives_columns_without_rows():
    assert answer_metrics(rollouts([]), OFFICIAL["hotpotqa"]).height == 0
