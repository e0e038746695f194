"""Olympiad data sets in their official layouts: sets of our own, and the real files if they are."""

import orjson
import pytest

from mbt_cli.benchmarks.imo import IMOAnswer, IMOGrading, IMOProof, ProofBench
from mbt_cli.errors import ArtifactError
from mbt_cli.verifiers.math import MathVerifier
from tests.conftest import REPOSITORY
from tests.unit.split_reading import read_split

DATA = REPOSITORY / "tests/unit/data"


def questions(kind, file):
    read = read_split(kind(files={"test": str(file)}), "test")
    assert not read.bad_rows
    rows = read.frame.to_dicts()
    return [{**row, "metadata": orjson.loads(row["metadata"])} for row in rows]


def test_answers_have_category_and_subcategory():
    first, second, third = questions(IMOAnswer, DATA / "imo_answer.csv")

    assert (first["question_id"], first["answer"]) == ("own-1", "2")
    assert first["question"] == 'What is $1 + 1$, for "experts"?'
    assert first["question_type"] == "Algebra"
    assert first["metadata"]["subcategory"] == "Operation"
    assert third["metadata"] == {"category": "Geometry"}
    # the row lacks the quote at the end of its problem, as one of the official file does
    assert second["answer"] == "$x = 2, -2$"
    assert second["question"].endswith("\\]")


def test_a_missing_quote_with_several_places_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('Problem ID,Problem,Short Answer\n1,"a ,"b" c ,"d" e\n')

    with pytest.raises(ArtifactError, match="line 2: is not CSV"):
        questions(IMOAnswer, path)


def test_the_answer_is_the_tagged_or_the_boxed_one():
    answer = IMOAnswer().extract_answer

    assert answer("<think>\\boxed{1}</think>So \\boxed{\\frac12}.") == "\\frac12"
    assert answer("\\boxed{1} <answer>$2$</answer>") == "$2$"
    assert answer("It is two.") == ""


def test_proofs_have_solution_rubric_and_level():
    easy, hard = questions(IMOProof, DATA / "imo_proof.csv")

    assert easy["answer"] == ""
    assert easy["metadata"]["rubric"] == "(Partial)\n1. Computed the sum."
    assert easy["metadata"]["solution"] == "It is $2 \\cdot 2$."
    assert "short_answer" not in easy["metadata"]
    assert hard["metadata"]["short_answer"] == "$7$"
    assert [q["difficulty"] for q in (easy, hard)] == ["easy", "hard"]
    assert [q["metadata"]["level"] for q in (easy, hard)] == ["pre-IMO", "IMO-hard"]


def test_proofbench_has_marking_schemes():
    listed, written = questions(ProofBench, DATA / "proofbench.jsonl")

    assert listed["metadata"]["rubric"] == [{"title": "Names reflexivity", "points": 7}]
    assert written["metadata"]["rubric"].startswith("1. Says so: 3 points")
    assert (written["question_type"], written["metadata"]["contest_year"]) == ("OWN", "2024")


def test_gradings_have_the_points_of_humans():
    found = questions(IMOGrading, DATA / "imo_grading.csv")

    assert [q["metadata"]["points"] for q in found] == ["0", "7", "6"]
    assert [q["question_type"] for q in found] == ["Incorrect", "Correct", "Almost"]
    assert "response" not in found[0]["metadata"]


@pytest.mark.parametrize(
    ("kind", "record", "message"),
    [
        (IMOAnswer, {"Problem": "x"}, "`Short Answer` is missing"),
        (IMOProof, {"Problem": "x"}, "`Grading guidelines` is missing"),
        (ProofBench, {"problem": "x"}, "`marking_scheme` is missing"),
        (ProofBench, {"problem": "x", "marking_scheme": 7}, "`marking_scheme` is empty"),
        (IMOGrading, {"Problem": "x"}, "`Grading ID` is missing"),
        (IMOGrading, {"Grading ID": "1", "Problem": "x", "Points": "10"}, "`Points` is 10"),
        (IMOGrading, {"Grading ID": "1", "Problem": "x", "Points": "good"}, "should be a number"),
        (IMOGrading, {"Grading ID": "1", "Problem": "x"}, "should be a number"),
    ],
)
def test_a_wrong_record_is_refused(kind, record, message):
    with pytest.raises(ValueError, match=message):
        kind().question(record)


def test_the_official_files_have_400_answers_and_60_proofs(shared):
    answers = questions(IMOAnswer, shared / "data/imo/answerbench_v2.csv")
    proofs = questions(IMOProof, shared / "data/imo/proofbench_v2.csv")

    assert (len(answers), len(proofs)) == (400, 60)
    by = {q["question_type"] for q in answers}
    assert by == {"Algebra", "Combinatorics", "Geometry", "Number theory"}
    assert all(sum(q["question_type"] == one for q in answers) == 100 for one in by)
    (repaired,) = (q for q in answers if q["question_id"] == "imo-bench-algebra-036")
    assert repaired["answer"] == r"$Y(x)=A+\frac{B}{x}-x$"
    assert {q["metadata"]["level"] for q in proofs} == {
        *("pre-IMO", "IMO-easy", "IMO-medium", "IMO-hard")
    }
    assert all(q["metadata"]["solution"] and q["metadata"]["rubric"] for q in proofs)


def test_reference_answers_equal_themselves(shared):
    rule = MathVerifier()
    answers = [q["answer"] for q in questions(IMOAnswer, shared / "data/imo/answerbench_v2.csv")]

    assert all(rule.same(answer, answer) for answer in answers)
