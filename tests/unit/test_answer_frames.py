"""Answer measures over whole frames are the single-value rules, row by row."""

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
)
from tests.unit.published import OFFICIAL, official, substring_match

WORDS = ["a", "the", "an", "Oslo", "oslo", "b", "B.", "new", "York", "yes", "no", "noanswer"]
ODD = ["\u00e9", "e\u0301a", "\u2013the", "_", "\u3000", "\x1f", "\u00bd", "\u5317\u4eac", "\u0130"]
TEXTS = st.lists(st.sampled_from(WORDS + ODD), max_size=5).map(" ".join)
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
        assert row["f1_score"] == pytest.approx(f1_score(prediction, references))
        assert row["official_exact_match"] == rules.exact_match * answered
        assert row["official_f1"] == pytest.approx(rules.f1 * answered)


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
