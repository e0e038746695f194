"""Examples before a question: which ones, in which order, and where they stand."""

import polars as pl
import pytest

from mbt_cli.trainers.few_shot import FewShot

SOURCE = "base/benchmark=b/split=train/model=m"
AXES = {"benchmark": "b", "split": "train"}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "now?"}]


def ranked(method, *names, seed=1):
    """The questions of the chosen rows; rows are ordered from the best to the worst."""
    keys = {"source": SOURCE, "sample": range(len(names)), "trace_id": 0}
    rows = pl.DataFrame({"question_id": names, **keys})
    rows = rows.with_columns(question="question_id")
    return method.chosen(rows, seed)["question_id"].to_list()


def prompt(method, *names):
    rows = [
        {
            **{"source": SOURCE, "question_id": name, "sample": 0, "trace_id": 0},
            "messages": [
                {"role": "system", "content": "of the training"},
                {"role": "user", "content": f"{name}?"},
            ],
            **{"thinking": "hm", "completion": f"{name}!"},
        }
        for name in names
    ]
    return method.prompt_of(rows)


def test_examples_are_of_different_questions_and_one_is_to_spare():
    best = FewShot(shots=2, order="best_first")

    assert ranked(best, "a", "a", "b", "c", "d") == ["a", "b", "c"]


def test_a_random_order_follows_the_seed():
    names = [f"q{n}" for n in range(20)]
    found = [ranked(FewShot(shots=4), *names, seed=seed) for seed in (1, 1, 2)]

    assert found[0] == found[1] != found[2]
    assert ranked(FewShot(shots=4, seed=2), *names, seed=1) == found[2]
    assert found[0] != names[:5]


@pytest.mark.parametrize(
    ("order", "question", "expected"),
    [
        ("best_first", "z", ["a?", "a!", "b?", "b!", "now?"]),
        ("best_last", "z", ["b?", "b!", "a?", "a!", "now?"]),
        ("best_last", "a", ["c?", "c!", "b?", "b!", "now?"]),  # never itself
    ],
)
def test_turns_stand_between_the_system_prompt_and_the_question(order, question, expected):
    made = prompt(FewShot(shots=2, order=order), "a", "b", "c")

    found = made.before(ASKED, AXES, question)

    assert [turn["content"] for turn in found] == ["Be brief.", *expected]
    assert [one["question_id"] for one in made.named()] == ["a", "b"]


def test_an_equal_id_of_another_split_is_another_question():
    made = prompt(FewShot(shots=1), "a", "b")

    assert made.before(ASKED, {**AXES, "split": "test"}, "a")[1]["content"] == "a?"
    assert made.before(ASKED, AXES, "a")[1]["content"] == "b?"


def test_the_system_prompt_takes_them_in_the_form_that_is_set():
    settings = {"system": "Like this:\n{{ examples }}", "example": "Q {{ prompt }} A {{ reply }}"}
    made = prompt(FewShot(shots=2, place="system", **settings), "a", "b", "c")

    system, question = made.before(ASKED, AXES, "z")

    assert system["content"] == "Be brief.\n\nLike this:\nQ a? A a!\n\nQ b? A b!"
    assert question == ASKED[1]


def test_thinking_is_shown_only_if_it_is_set():
    (without,) = prompt(FewShot(shots=1), "a").examples
    (with_it,) = prompt(FewShot(shots=1, thinking=True), "a").examples

    assert without.turns[-1].content == "a!"
    assert with_it.turns[-1].content == "<think>\nhm\n</think>\n\na!"
