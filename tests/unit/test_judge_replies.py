"""How judges' replies are read, and which are refused: written as models write them."""

import pytest

from mbt_cli.errors import JudgeReplyError
from mbt_cli.judges.answer_hit import AnswerHit
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy

REFUSED = object()

# three paragraphs of 1, 2 and 1 sentences
ROW = {"trace": "We look.\n\nIt is Oslo. Surely.\n\nOslo, as said."}

GRADES = [
    ("A", "A"),
    ("A.", "A"),
    ("(B)", "B"),
    ("[C]", "C"),
    ("**A**", "A"),
    ("`B`", "B"),
    ("a", "A"),
    ("CORRECT", "A"),
    ("Incorrect.", "B"),
    ("NOT_ATTEMPTED", "C"),
    ("not attempted", "C"),
    ("A: CORRECT", "A"),
    ("B (INCORRECT)", "B"),
    ("Grade: A", "A"),
    ("**Grade:** B", "B"),
    ("**Grade: C**", "C"),
    ("## Verdict\n\nA", "A"),
    ("Final grade: **A** (CORRECT)", "A"),
    ("grade = b", "B"),
    ("The grade is A.", "A"),
    ("My verdict is C", "C"),
    ("\\boxed{B}", "B"),
    ("$\\boxed{A}$", "A"),
    ('{"grade": "A"}', "A"),
    ('{"Grade": "b"}', "B"),
    ('```json\n{"grade": "C"}\n```\nThe answer hedges.', "C"),
    ('Sure! {"grade": "A", "reason": "same city"} Hope this helps.', "A"),
    ('{"grade": "INCORRECT"}', "B"),
    ("<think>B? No, it is A.</think>\nA", "A"),
    ("it could be A or B</think>B", "B"),
    ("Both name the same city. A correct answer would be Oslo.\n\nGrade: A", "A"),
    ("The given answer is another city.\n\nB", "B"),
    ("1. Compare.\n2. They differ.\n\nTherefore: B", "B"),
    ("A. The answer matches the reference.", "A"),
    ("B, because the year is another one.", "B"),
    ("A - the names are the same", "A"),
    ("A\n\nGrade: A", "A"),
    ("C. S. Lewis is meant in both.\nGrade: A", "A"),
    ("C. S. Lewis is meant in both.", REFUSED),
    ("A correct answer would name Oslo.", REFUSED),
    ("A or B", REFUSED),
    ("A: INCORRECT", REFUSED),
    ("A\n\nFinal: B", REFUSED),
    ("Grade: A\nGrade: B", REFUSED),
    ('{"grade": "A"} {"grade": "B"}', REFUSED),
    ('{"grade": null}', REFUSED),
    ('{"verdict": "fine"}', REFUSED),
    ("A. The answer matches, so B is wrong.", REFUSED),
    ("A. The answer matches.\nGrade: B", REFUSED),
    ("A: that is incorrect", REFUSED),
    ("D", REFUSED),
    ("AB", REFUSED),
    ("I think the answer is fine.", REFUSED),
    ("maybe", REFUSED),
    ("**", REFUSED),
    ("", REFUSED),
    ("<think></think>", REFUSED),
]

HITS = [
    ("YES", True),
    ("no.", False),
    ("**YES**", True),
    ("Yes, the second paragraph derives it.", True),
    ("No - it is only listed among options.", False),
    ("ANSWER_HIT: YES", True),
    ("**Answer hit:** No", False),
    ('{"answer_hit": "NO"}', False),
    ('{"answer_hit": true}', True),
    ('```\n{"answer_hit": "YES"}\n```', True),
    ("Paragraph 3 names Oslo with a document.\n\nVerdict: YES", True),
    ("The trace guesses.\nNO", False),
    ("No, wait.\nYES", REFUSED),
    ("Yes, although NO document says so.", REFUSED),
    ("YES\nNO", REFUSED),
    ("YES or NO", REFUSED),
    ("Perhaps", REFUSED),
    ("", REFUSED),
]

# three paragraphs, so the markers are [[M01]], [[M02]] and [[M_END]]
MARKS = [
    (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: [[M_END]]\nCONFIDENCE: 0.9",
        (2, [3], 0.9),
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M_END]]\nREDUNDANT_PARAGRAPH_MARKERS: NONE\nCONFIDENCE: 1\n"
        "NOTES: short",
        (3, [], 1.0),
    ),
    (
        "answer_paragraph_marker: [[m00]]\nredundant_paragraph_markers: none\nconfidence: .5",
        (0, [], 0.5),
    ),
    (
        "**ANSWER_PARAGRAPH_MARKER:** [[M2]]\n**REDUNDANT_PARAGRAPH_MARKERS:** [[M01]], [[M_END]]\n"
        "**CONFIDENCE:** 85%",
        (2, [1, 3], 0.85),
    ),
    (
        "- ANSWER_PARAGRAPH_MARKER: `[[M02]]`\n- REDUNDANT_PARAGRAPH_MARKERS:\n  - [[M01]]\n"
        "  - [[M_END]]\n- CONFIDENCE: 0.7 (fairly sure)\n- NOTES: none",
        (2, [1, 3], 0.7),
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [M02]\nREDUNDANT_PARAGRAPH_MARKERS: {[[M01]]; [[M_END]]}\n"
        "CONFIDENCE: 90 %",
        (2, [1, 3], 0.9),
    ),
    (
        "The second one names it.\n\nANSWER_PARAGRAPH_MARKER: [[M02]] (names Oslo)\n"
        "REDUNDANT_PARAGRAPH_MARKERS: [[[M01]] and [[M_END]]]\nCONFIDENCE: 0.8\n\nHope this helps.",
        (2, [1, 3], 0.8),
    ),
    (
        '```json\n{"ANSWER_PARAGRAPH_MARKER": "[[M_END]]", "REDUNDANT_PARAGRAPH_MARKERS": [],'
        ' "CONFIDENCE": 0.25, "NOTES": ""}\n```',
        (3, [], 0.25),
    ),
    (
        '{"answer_paragraph_marker": "[[M00]]", "redundant_paragraph_markers": ["[[M01]]"],'
        ' "confidence": 1} done',
        (0, [1], 1.0),
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M03]]\nREDUNDANT_PARAGRAPH_MARKERS: NONE\nCONFIDENCE: 1",
        REFUSED,  # the third paragraph is the last, so there is no [[M03]]
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: [[M07]]\nCONFIDENCE: 1",
        REFUSED,
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: [[M00]]\nCONFIDENCE: 1",
        REFUSED,
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: [[M01]], NONE\n"
        "CONFIDENCE: 1",
        REFUSED,
    ),
    ("ANSWER_PARAGRAPH_MARKER: M02\nREDUNDANT_PARAGRAPH_MARKERS: NONE\nCONFIDENCE: 1", REFUSED),
    ("ANSWER_PARAGRAPH_MARKER: NONE\nREDUNDANT_PARAGRAPH_MARKERS: NONE\nCONFIDENCE: 1", REFUSED),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M01]] [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: NONE\n"
        "CONFIDENCE: 1",
        REFUSED,
    ),
    ("ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: NONE", REFUSED),
    ("ANSWER_PARAGRAPH_MARKER: [[M02]]\nCONFIDENCE: 1", REFUSED),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: \nCONFIDENCE: 1",
        REFUSED,
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: NONE\nCONFIDENCE: high",
        REFUSED,
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: NONE\nCONFIDENCE: 85",
        REFUSED,
    ),
    (
        "ANSWER_PARAGRAPH_MARKER: [[M01]]\nANSWER_PARAGRAPH_MARKER: [[M02]]\n"
        "REDUNDANT_PARAGRAPH_MARKERS: NONE\nCONFIDENCE: 1",
        REFUSED,
    ),
    ("The answer is in the second paragraph.", REFUSED),
    ("", REFUSED),
]

LEVELS = [
    ("L_OBS: 3\nPHASES: 1, 2, 3\nCONFIDENCE: 0.8", (3, [1, 2, 3], 0.8)),
    ("l_obs:0\nphases: none\nconfidence: 1", (0, [], 1.0)),
    ("L_OBS: 4\nPHASES: 1, 2, 2, 5\nCONFIDENCE: .9", (4, [1, 2, 5], 0.9)),
    ("**L_OBS:** 4/5\n**PHASES:** [1, 2, 3, 5]\n**CONFIDENCE:** 85%", (4, [1, 2, 3, 5], 0.85)),
    ("- **L_OBS**: 2\n- **PHASES**: {2}\n- **CONFIDENCE**: 60 %", (2, [2], 0.6)),
    ("L_OBS: Level 3\nPHASES: Phase 1, Phase 3\nCONFIDENCE: 0.5", (3, [1, 3], 0.5)),
    ("L_OBS: 5 (all there)\nPHASES: 1, 2, 3, 4 and 5\nCONFIDENCE: 1.0", (5, [1, 2, 3, 4, 5], 1.0)),
    ("L_OBS: 3\nPHASES:\n- 1\n- 3\nCONFIDENCE: 0.5", (3, [1, 3], 0.5)),
    ("L_OBS: 2.0\nPHASES: 5\nCONFIDENCE: 0", (2, [5], 0.0)),
    ("It plans, then checks.\n\nL_OBS: 2\nPHASES: 2\nCONFIDENCE: 0.5\n\nDone.", (2, [2], 0.5)),
    ('{"L_OBS": 3, "PHASES": [1, 2], "CONFIDENCE": 0.75}', (3, [1, 2], 0.75)),
    ('```json\n{"l_obs": 1, "phases": [], "confidence": 1}\n```', (1, [], 1.0)),
    ("<think>4? no</think>L_OBS: 3\nPHASES: 1\nCONFIDENCE: 1", (3, [1], 1.0)),
    ("L_OBS: 4.5\nPHASES: 1\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 6\nPHASES: 1\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: -1\nPHASES: 1\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: three\nPHASES: 1\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 3\nPHASES: 1 2 3\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 3\nPHASES: 1,,2\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 3\nPHASES: 1-3\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 3\nPHASES: 7, 1\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 3\nPHASES: \nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 3\nCONFIDENCE: 1", REFUSED),
    ("L_OBS: 3\nPHASES: 1\nCONFIDENCE: 1.7", REFUSED),
    ("L_OBS: 3\nPHASES: 1\nCONFIDENCE: 0.5.5", REFUSED),
    ("L_OBS: 3\nPHASES: 1\nCONFIDENCE: 0.9%", REFUSED),
    ('{"L_OBS": 4.5, "PHASES": [1], "CONFIDENCE": 1}', REFUSED),
    ("", REFUSED),
]


def verdict(judge, reply, row=ROW):
    try:
        return judge.parse(reply, row)
    except JudgeReplyError:
        return REFUSED


@pytest.mark.parametrize(("reply", "grade"), GRADES)
def test_a_grade_is_read_only_when_one_is_meant_for_sure(reply, grade):
    found = verdict(AnswerMatch(), reply)

    assert found == (REFUSED if grade is REFUSED else {"grade": grade})


@pytest.mark.parametrize(("reply", "hit"), HITS)
def test_an_answer_hit_is_read_only_when_one_is_meant_for_sure(reply, hit):
    found = verdict(AnswerHit(), reply)

    assert found == (REFUSED if hit is REFUSED else {"hit": hit})


@pytest.mark.parametrize(("reply", "marks"), MARKS)
def test_marks_are_read_only_when_all_lines_are_there_and_in_range(reply, marks):
    found = verdict(Redundancy(), reply)

    if found is not REFUSED:
        found = (found["answer_paragraph"], found["redundant_paragraphs"], found["confidence"])
    assert found == marks


@pytest.mark.parametrize(("reply", "observed"), LEVELS)
def test_levels_are_read_only_when_all_lines_are_there_and_in_range(reply, observed):
    found = verdict(Phases(), reply)

    if found is not REFUSED:
        found = (found["l_obs"], found["phases"], found["confidence"])
    assert found == observed


def test_marks_become_counts_of_sentences():
    reply = (
        "ANSWER_PARAGRAPH_MARKER: [[M02]]\nREDUNDANT_PARAGRAPH_MARKERS: [[M_END]]\nCONFIDENCE: 1"
    )

    found = Redundancy().parse(reply, ROW)

    # paragraphs of 1, 2 and 1 sentences: 1 + 2 up to the answer, the last one is redundant
    assert found["first_correct"] == 3
    assert found["redundant_sentences"] == 1
    assert found["total_sentences"] == 4
    assert found["paragraphs"] == 3
