"""Benchmarks of beliefs: records in their layouts become questions with options and outcomes."""

import orjson
import pytest
from pydantic import ValidationError

from mbt_cli.benchmarks.change_my_view import ChangeMyView
from mbt_cli.benchmarks.forecasting import Forecasting
from mbt_cli.benchmarks.open_questions import Conceptual, Intellectual, WildChat
from mbt_cli.benchmarks.openreview import OpenReview
from mbt_cli.benchmarks.research import Research
from tests.unit.split_reading import read_split

FORECASTBENCH = {
    "id": "f1",
    "source": "manifold",
    "question": "Will it snow?",
    "resolution_criteria": "By the weather station.",
    "background": "It is May.",
    "freeze_datetime_value": "0.03",
    "freeze_datetime": "2025-10-16T00:00:00+00:00",
    "resolution_date": "2025-11-01",
    "resolved_to": 0.0,
}
METACULUS = {
    "id": 7,
    "title": "Who wins?",
    "question": {
        "type": "multiple_choice",
        "options": ["Ada", "Bo", "Cy"],
        "resolution": "Bo",
        "actual_resolve_time": "2025-03-02T10:00:00Z",
        "aggregations": {"recency_weighted": {"latest": {"centers": [0.2, 0.5, 0.3]}}},
    },
}
POLYMARKET = {
    "conditionId": "0x1",
    "question": "Rain or sun?",
    "outcomes": '["Rain", "Sun"]',
    "outcomePrices": '["0", "1"]',
    "closed": True,
    "closedTime": "2025-02-01",
}


def test_a_forecastbench_record():
    made = Forecasting().question(FORECASTBENCH)

    assert (made.options, made.resolution, made.answer) == (("Yes", "No"), (0.0, 1.0), "B")
    assert made.metadata["crowd"] == [0.03, 0.97]
    assert made.metadata["resolved"] == "2025-11-01"
    assert made.question.endswith("This is asked on 2025-10-16.\n\nA. Yes\nB. No")
    # the outcome is not in what the model reads
    assert "2025-11" not in made.question


def test_a_metaculus_and_a_polymarket_record():
    who, sky = Forecasting().question(METACULUS), Forecasting().question(POLYMARKET)

    assert (who.question_id, who.answer, who.resolution) == ("7", "B", (0.0, 1.0, 0.0))
    assert who.metadata["crowd"] == [0.2, 0.5, 0.3]
    assert (sky.options, sky.resolution) == (("Rain", "Sun"), (0.0, 1.0))
    assert sky.metadata["crowd"] is None  # the last prices of a closed market are its outcome


@pytest.mark.parametrize(
    "record",
    [
        {**FORECASTBENCH, "resolved_to": None},
        {**METACULUS, "question": {**METACULUS["question"], "resolution": "annulled"}},
        {**POLYMARKET, "closed": False, "outcomePrices": '["0.4", "0.6"]'},
    ],
)
def test_an_unresolved_question_has_options_and_no_answer(record):
    made = Forecasting().question(record)

    assert (made.answer, made.resolution) == ("", ())
    assert len(made.options) >= 2
    assert made.metadata["resolved"] is None


def test_questions_resolved_after_a_date():
    late = Forecasting(resolved_after="2025-06-30")

    kept = [late.has(r, "test") for r in (FORECASTBENCH, METACULUS, POLYMARKET)]

    assert kept == [True, False, False]
    assert late.has({**FORECASTBENCH, "resolved_to": None}, "test")
    assert not Forecasting(resolved_after="2025-11-01").has(FORECASTBENCH, "test")
    with pytest.raises(ValidationError, match="2025-10-26"):
        Forecasting(resolved_after="soon")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**FORECASTBENCH, "resolved_to": 2}, "`resolved_to` is 2"),
        ({**METACULUS, "question": {"type": "numeric"}}, "`type` is 'numeric'"),
        ({**POLYMARKET, "outcomes": "Rain"}, "`outcomes` is a text that is not a JSON list"),
        ({**POLYMARKET, "outcomes": ["Rain", "Rain"]}, "2 to 26 different options"),
    ],
)
def test_a_wrong_record_says_what_is_wrong(record, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Forecasting().question(record)


def test_shuffled_options_keep_outcome_answer_and_crowd():
    orders = set()
    for seed in range(12):
        made = Forecasting(shuffle_options=True, shuffle_seed=seed).question(METACULUS)
        orders.add(made.options)
        beside = dict(zip(made.options, made.resolution, strict=True))
        crowd = dict(zip(made.options, made.metadata["crowd"], strict=True))
        assert beside == {"Ada": 0.0, "Bo": 1.0, "Cy": 0.0}
        assert crowd == {"Ada": 0.2, "Bo": 0.5, "Cy": 0.3}
        assert made.options["ABC".index(made.answer)] == "Bo"
        assert f"{made.answer}. Bo" in made.question
    assert len(orders) > 2


def test_the_hard_answer_of_research_is_right_wherever_it_stands():
    places = set()
    for n in range(20):
        record = {"id": n, "question": "Why?", "easy_answer": "Luck.", "hard_answer": "Work."}
        made = Research().question(record)
        assert made.options[made.resolution.index(1.0)] == "Work."
        places.add(made.answer)
    assert places == {"A", "B"}
    unknown = Research().question({**record, "correct": None})
    assert (unknown.answer, unknown.resolution) == ("", ())


def test_a_view_in_both_forms():
    record = {"id": "v", "title": "Tea is best", "selftext": "It is.", "argument": "Try coffee."}

    yes = ChangeMyView().question({**record, "delta": True})
    free = ChangeMyView(form="free_form").question(record)

    assert (yes.answer, yes.resolution) == ("A", (1.0, 0.0))
    assert "Argument: Try coffee." in yes.question
    assert (free.options, free.answer) == ((), "")
    assert "coffee" not in free.question
    with pytest.raises(ValueError, match="`delta` is 'x'"):
        ChangeMyView().question({**record, "delta": "x"})


def test_papers_hide_what_is_to_be_hidden():
    record = {
        "id": "p",
        "title": {"value": "On tea"},
        "abstract": "We brew.",
        "authors": ["Ada"],
        "reviews": [{"rating": 6, "summary": "Fine."}],
        "references": ["Tea, 1900"],
        "decision": "Accept (poster)",
    }

    usual, all_of_it = OpenReview().question(record), OpenReview(hide=()).question(record)

    assert (usual.answer, usual.resolution) == ("A", (1.0, 0.0))
    assert "Ada" not in usual.question
    assert "Fine." not in usual.question
    assert "Tea, 1900" in usual.question
    assert "rating: 6; summary: Fine." in all_of_it.question
    assert "poster" not in all_of_it.question
    assert OpenReview().question({**record, "decision": "Withdrawn"}).resolution == ()


def test_open_questions_have_neither_options_nor_answer():
    made = [
        Conceptual().question({"id": "c", "question": "What is a mind?"}),
        Intellectual().question({"topic": "Logic", "prompt": "What is a mind?"}),
        WildChat().question(
            {
                "conversation_hash": "h",
                "conversation": [
                    {"role": "user", "content": "What is a mind?"},
                    {"role": "assistant", "content": "Hm."},
                ],
                "language": "English",
            }
        ),
    ]

    assert {question.question for question in made} == {"What is a mind?"}
    assert {(question.options, question.answer) for question in made} == {((), "")}
    assert [question.question_type for question in made] == [None, "Logic", "English"]


def test_a_share_by_hash_splits_a_file_into_two_that_have_nothing_in_common(tmp_path):
    file = tmp_path / "markets.json"
    file.write_bytes(orjson.dumps([{**FORECASTBENCH, "id": f"f{n}"} for n in range(200)]))
    files = {"train": str(file), "test": str(file)}
    benchmark = Forecasting(files=files, train_share=0.7)

    train, test = (read_split(benchmark, split).frame for split in ("train", "test"))

    ids = set(train["question_id"]), set(test["question_id"])
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 200
    assert 120 <= len(ids[0]) <= 160
    assert test["options"][0].to_list() == ["Yes", "No"]
    assert test["resolution"][0].to_list() == [0.0, 1.0]
