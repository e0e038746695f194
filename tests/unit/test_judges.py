"""What judges are asked, and what needs no asking."""

from pathlib import Path

import pytest

from mbt_cli.core.templates import parse_template
from mbt_cli.judges.answer_hit import AnswerHit
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy

PROMPTS = Path(__file__).parents[2] / "mbt_cli/prompts"
JUDGES = [AnswerMatch(), AnswerHit(), Redundancy(), Phases()]

ROW = {
    "question_id": "q1",
    "sample": 0,
    "question": "Which city is the capital of Norway?",
    "gold_answer": "Oslo",
    "gold_aliases": ["Christiania", "Oslo"],
    "answer": "Oslo",
    "reply": "<answer>Oslo</answer>",
    "reasoning": "We look.\n\nIt is Oslo. Surely.\n\nOslo, as said.",
    "trace": "We look.\n\nIt is Oslo. Surely.\n\nOslo, as said.",
    "finish_reason": "stop",
    "difficulty": None,
}


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.kind)
def test_the_shipped_template_has_only_known_placeholders_and_shows_the_row(judge):
    source = (PROMPTS / f"{judge.template}.md").read_text(encoding="utf-8")
    template = parse_template(judge.template, source, known=judge.placeholders)

    system, user = judge.prompt(ROW, template)

    assert (system["role"], user["role"]) == ("system", "user")
    assert ROW["question"] in user["content"]
    assert "- Oslo\n- Christiania" in user["content"]
    assert "{{" not in user["content"]


def test_the_redundancy_prompt_marks_every_paragraph_but_the_last():
    source = (PROMPTS / "redundancy.md").read_text(encoding="utf-8")
    judge = Redundancy()
    template = parse_template("redundancy", source, known=judge.placeholders)

    user = judge.prompt(ROW, template)[1]["content"]

    assert "We look.\n\n[[M01]]\n\nIt is Oslo. Surely.\n\n[[M02]]\n\nOslo, as said." in user
    assert "in 3 paragraphs" in user


def test_an_unknown_difficulty_is_medium_in_the_prompt():
    source = (PROMPTS / "phases.md").read_text(encoding="utf-8")
    judge = Phases()

    user = judge.prompt(ROW, parse_template("phases", source, known=judge.placeholders))[1]

    assert "Difficulty tier: medium" in user["content"]


def test_nobody_is_asked_about_an_empty_answer_which_is_wrong():
    judge = AnswerMatch()

    assert judge.verdict_without_model({**ROW, "answer": None}) == {"grade": "B"}
    assert judge.verdict_without_model({**ROW, "answer": "  "}) == {"grade": "B"}
    assert judge.verdict_without_model(ROW) is None


CUT = {**ROW, "finish_reason": "length"}
EMPTY = {**ROW, "trace": "  "}


@pytest.mark.parametrize(
    ("judge", "row", "known"),
    [
        (AnswerHit(), ROW, None),
        (AnswerHit(), CUT, {"hit": None}),
        (AnswerHit(), EMPTY, {"hit": False}),
        (Redundancy(), ROW, None),
        (Redundancy(), CUT, dict.fromkeys(Redundancy.columns)),
        (Redundancy(), EMPTY, dict.fromkeys(Redundancy.columns)),
        (Phases(), ROW, None),
        (Phases(), CUT, dict.fromkeys(Phases.columns)),
        (Phases(), EMPTY, {"l_obs": 0, "phases": [], "confidence": None}),
    ],
)
def test_cut_and_empty_traces_are_not_sent(judge, row, known):
    assert judge.verdict_without_model(row) == known


def test_a_constrained_reply_can_name_no_paragraph_that_the_trace_lacks():
    fields = Redundancy().schema_for(ROW)["properties"]

    markers = ["[[M01]]", "[[M02]]", "[[M_END]]"]
    assert fields["ANSWER_PARAGRAPH_MARKER"]["enum"] == ["[[M00]]", *markers]
    assert fields["REDUNDANT_PARAGRAPH_MARKERS"]["items"]["enum"] == markers
    assert fields["REDUNDANT_PARAGRAPH_MARKERS"]["maxItems"] == 3


@pytest.mark.parametrize("judge", [Redundancy(), Phases()], ids=lambda judge: judge.kind)
def test_a_constrained_confidence_comes_to_an_end(judge):
    steps = judge.schema_for(ROW)["properties"]["CONFIDENCE"]["enum"]

    assert (steps[0], steps[-1], len(steps)) == (0, 1, 21)
