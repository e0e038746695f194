"""Judges of answers and solutions read yes or no, or nothing."""

import pytest

from mbt_cli.core.templates import parse_template
from mbt_cli.errors import JudgeReplyError
from mbt_cli.judges.yes_no import AnswerEquivalence, SolutionCheck, read_yes_no


@pytest.mark.parametrize(
    ("reply", "is_right"),
    [
        ("Same set.\n<verdict>yes</verdict>", True),
        ("Differs.\n<Verdict> No. </Verdict>", False),
        ('{"verdict": "yes"}', True),
        ("**Verdict:** no", False),
        ("YES", True),
        ("The final verdict is: yes", True),
        ("No, the reference has two solutions.", False),
        ("It looks equal, yes, but no case is missing.\n<verdict>yes</verdict>", True),
        ("<think><verdict>no</verdict></think><verdict>yes</verdict>", True),
        ("```\n<verdict>no</verdict>\n```", False),
        (r"\boxed{\text{no}} <verdict>no</verdict>", False),
    ],
)
def test_a_verdict_is_read(reply, is_right):
    assert read_yes_no(reply) is is_right


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "They are equal.",
        "<verdict>yes</verdict> or <verdict>no</verdict>",
        "<verdict>maybe</verdict>",
        "<verdict>yes and no</verdict>",
        '{"verdict": "perhaps"}',
        "Verdict: yes\nVerdict: no",
    ],
)
def test_what_is_not_clear_is_unread(reply):
    with pytest.raises(JudgeReplyError):
        read_yes_no(reply)


ROW = {
    "question": "Find x.",
    "gold_answer": "$2$",
    "gold_aliases": ["2"],
    "answer": "\\frac42",
    "reply": "<think>hm</think>So it is two.\n## Self Evaluation\nFine.",
    "finish_reason": "stop",
    "metadata": {"solution": "Halve 4."},
}


def test_the_judge_of_answers_is_shown_the_answer_or_the_whole_reply():
    text = "=== user ===\n{{ question }}|{{ gold_answers }}|{{ answer }}"
    template = parse_template("t", text, known=AnswerEquivalence.placeholders)

    (answer,) = AnswerEquivalence().prompt(ROW, template)
    (reply,) = AnswerEquivalence(reads="reply").prompt(ROW, template)

    assert answer["content"] == "Find x.|- $2$\n- 2|\\frac42"
    assert reply["content"].endswith("|So it is two.\n## Self Evaluation\nFine.")


def test_no_answer_is_wrong_without_a_request():
    without = {**ROW, "answer": None}

    assert AnswerEquivalence().verdict_without_model(without) == {"right": False}
    assert AnswerEquivalence(reads="reply").verdict_without_model(without) is None
    assert AnswerEquivalence().verdict_without_model(ROW) is None
    assert SolutionCheck().verdict_without_model({**ROW, "reply": "<think>x"}) == {"right": False}


def test_the_judge_of_solutions_is_shown_solution_and_proof():
    text = "=== user ===\n{{ question }}|{{ solution }}|{{ rubric }}|{{ proof }}"
    template = parse_template("t", text, known=SolutionCheck.placeholders)

    (sent,) = SolutionCheck(cut="self_evaluation").prompt(ROW, template)

    assert sent["content"] == "Find x.|Halve 4.|(none given)|So it is two."
