"""The qualitative judge: what it is asked, and which points it reads."""

import pytest

from mbt_cli.core.judge_scales import POINTS
from mbt_cli.core.templates import parse_template
from mbt_cli.errors import JudgeReplyError
from mbt_cli.judges.qualitative import Example, Qualitative
from tests.conftest import REPOSITORY

SOURCE = (REPOSITORY / "mbt_cli/prompts/qualitative.md").read_text(encoding="utf-8")
TEMPLATE = parse_template("qualitative", SOURCE, known=Qualitative.placeholders)
EXAMPLES = tuple(Example(question=f"E{n}?", reasoning="Hm.", points=n) for n in range(3))


def row(name="q", reply="Only as a claim about a use."):
    return {"question_id": name, "question": "Is a map false?", "reasoning": None, "reply": reply}


def asked(judge, name="q"):
    return judge.prompt(row(name), TEMPLATE)[-1]["content"]


def test_the_judge_answers_first_and_hears_the_sides_that_are_named():
    whole, red, none = (
        asked(Qualitative(**settings))
        for settings in ({}, {"sides": "red"}, {"sides": "none", "self_answer": False})
    )

    assert [text.count("As a critic") for text in (whole, red, none)] == [1, 1, 0]
    assert [text.count("As an advocate") for text in (whole, red, none)] == [1, 0, 0]
    assert whole.index("1. First answer") < whole.index("2. As a critic") < whole.index("4. Settle")
    assert "First answer" not in none
    assert "Only as a claim about a use." in none


def test_examples_stand_in_their_order_or_in_one_of_each_question():
    def order(judge, name):
        text = asked(judge, name)
        return tuple(sorted(range(3), key=lambda n: text.index(f"E{n}?")))

    fixed = Qualitative(examples=EXAMPLES, order="fixed")
    permuted = Qualitative(examples=EXAMPLES)

    assert {order(fixed, f"q{n}") for n in range(30)} == {(0, 1, 2)}
    assert len({order(permuted, f"q{n}") for n in range(60)}) == 6
    assert order(permuted, "q1") == order(permuted, "q1")
    assert "<points>2 out of 10</points>" in asked(fixed)


def test_points_of_its_scale_are_read_and_others_are_unread():
    judge = Qualitative()

    assert judge.parse("Fine. <points>7 out of 10</points>", row()) == {"points": 7.0}
    with pytest.raises(JudgeReplyError):
        judge.parse("<points>12 out of 10</points>", row())
    assert judge.verdict_without_model(row(reply="")) == {"points": 0.0}
    assert judge.verdict_without_model(row()) is None
    assert (judge.quantity, judge.verdict_scale().high) == (POINTS, 10)
