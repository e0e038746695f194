"""Math answers: boxes, tags, GSM8K's numbers, and whether two forms mean the same."""

import polars as pl
import pytest

from mbt_cli.core.measures import ScoreInputs
from mbt_cli.scores.answers import MathMatch
from mbt_cli.verifiers.math import MathVerifier, final_answer, last_boxed, plain_latex
from mbt_cli.verifiers.number import NumberVerifier, last_number


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and then \boxed{2", "1"),
        (r"\fbox {x}", "x"),
        (r"\boxed 7", None),
        ("none", None),
    ],
)
def test_the_last_complete_box_counts(text, inside):
    assert last_boxed(text) == inside


def test_thousands_of_open_boxes_are_searched_quickly():
    assert last_boxed(r"\boxed{" * 5_000) is None


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"<answer>\boxed{72}</answer>", "72"),
        (r"\boxed{1} <answer>2</answer>", "2"),
        (r"<think>\boxed{1}</think> I give up", None),
        (r"so $x = \boxed{ 5 }$", "5"),
        ("x = 5", None),
    ],
)
def test_the_tagged_answer_goes_before_the_boxed_one(reply, answer):
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18", "18"),
        ("$1,080.00", "1080"),
        ("-3.50 degrees", "-3.50"),
        ("from 3 to 7.", "7"),
        (".5", ".5"),
        ("none", None),
    ],
)
def test_the_last_number_without_commas_is_the_one(text, number):
    assert last_number(text) == number


def test_gsm8k_reads_a_mark_where_there_is_neither_tag_nor_box():
    assert NumberVerifier().answer("16 - 7 = 9, 9 x 2 = 18\n#### 18") == "18"
    assert NumberVerifier().answer("it is 18") is None


def test_latex_is_compared_without_its_dress():
    assert plain_latex(r"\left( 3, \dfrac{\pi}{2} \right)") == plain_latex(r"(3,\frac{\pi}{2})")
    assert plain_latex(r"90^\circ") == plain_latex(r"90^{\circ}") == "90"


def cell(verifier, *pairs):
    """Rollouts of (reply, gold) whose answers were not tagged."""
    count = len(pairs)
    frame = pl.DataFrame(
        {
            "question_id": [f"q{i}" for i in range(count)],
            "sample": [0] * count,
            "answer": [None] * count,
            "reply": [pair[0] for pair in pairs],
            "gold_answer": [pair[1] for pair in pairs],
            "gold_aliases": [[]] * count,
            "failure": [None] * count,
        },
        schema_overrides={
            "answer": pl.String,
            "failure": pl.String,
            "gold_aliases": pl.List(pl.String),
        },
    )
    return ScoreInputs(frame, verifier)


def test_gsm8k_compares_numbers():
    inputs = cell(NumberVerifier(), (r"\boxed{1,000}", "1000"), ("#### 7", "8"), ("seven", "7"))

    (found,) = MathMatch().measure(inputs)

    assert found.questions["value"].to_list() == [1.0, 0.0, 0.0]


def test_equal_forms_need_no_library():
    inputs = cell(MathVerifier(), (r"\boxed{\dfrac12}", r"\frac12"), ("no box", "1"))

    (found,) = MathMatch().measure(inputs)

    assert found.questions["value"].to_list() == [1.0, 0.0]


def test_different_forms_of_the_same_value_are_equal():
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    inputs = cell(
        MathVerifier(),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{(0, 1)}", "[0, 1]"),
        (r"\boxed{east}", r"\text{east}"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{6}", "5"),
    )

    (found,) = MathMatch().measure(inputs)

    assert found.questions["value"].to_list() == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
