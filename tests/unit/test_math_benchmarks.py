"""MATH, AIME, BeyondAIME and DeepScaleR: small sets of our own in the layouts of the hub."""

import json
import os
from pathlib import Path

import polars as pl
import pytest

from mbt_cli.benchmarks.aime import AIME, BeyondAIME
from mbt_cli.benchmarks.deepscaler import DeepScaleR
from mbt_cli.benchmarks.math import MATH
from mbt_cli.errors import StageError
from tests.unit.split_reading import read_split

SHARED = Path(os.environ.get("MBT_SHARED", Path(__file__).parents[3] / "shared")) / "data"
ALGEBRA = {
    "problem": "If $2x = 6$, what is $x$?",
    "level": "Level 1",
    "type": "Algebra",
    "solution": r"Halve both sides: \boxed{2}? No, $x = \boxed{3}$.",
}
COUNTING = {
    "problem": "A coin is tossed twice. How likely are two heads?",
    "level": "Level 5",
    "type": "Counting & Probability",
    "solution": r"One of four outcomes: $\boxed{\frac{1}{4}}$.",
}


def test_a_math_record_has_the_last_box_as_its_answer():
    question = MATH().question(COUNTING)

    assert question.answer == r"\frac{1}{4}"
    assert (question.question_type, question.difficulty) == ("Counting & Probability", "hard")
    assert question.metadata == {"level": "Level 5", "solution": COUNTING["solution"]}
    assert MATH().question(ALGEBRA).answer == "3"


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"So $x = \boxed 7$ and we stop.", "7"),
        (r"$\boxed{1}$ or $\fbox{2}$", "2"),
        (r"$\boxed{\{1, 2\}}$", r"\{1, 2\}"),
    ],
)
def test_a_box_is_written_in_several_ways(solution, answer):
    assert MATH().question({**ALGEBRA, "solution": solution}).answer == answer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solution": "It is 3."}, r"no `\\boxed` answer"),
        ({"solution": r"\boxed{3"}, r"no `\\boxed` answer"),
        ({"solution": None}, "`solution` is missing"),
        ({"problem": " "}, "`problem` is empty"),
    ],
)
def test_a_math_record_without_an_answer_says_so(change, message):
    with pytest.raises(ValueError, match=message):
        MATH().question({**ALGEBRA, **change})


def test_the_hub_has_a_folder_for_each_subject_and_all_are_read(tmp_path):
    for name, record in (("algebra", ALGEBRA), ("counting_and_probability", COUNTING)):
        (tmp_path / name).mkdir()
        pl.DataFrame([record]).write_parquet(tmp_path / name / "test-00000-of-00001.parquet")

    whole = read_split(MATH(source="hub", repo=str(tmp_path)), "test").frame
    one = read_split(MATH(source="hub", repo=str(tmp_path), config="algebra"), "test").frame

    assert whole["question_type"].to_list() == ["Algebra", "Counting & Probability"]
    assert whole["difficulty"].to_list() == ["easy", "hard"]
    assert one["answer"].to_list() == ["3"]
    assert MATH(source="hub").official_size("test") == 5_000
    assert MATH(source="hub", config="algebra").official_size("test") is None


@pytest.mark.parametrize(
    ("answer", "number"), [("033", "33"), (70, "70"), (204.0, "204"), ("$5$", "5"), ("0", "0")]
)
def test_an_answer_of_aime_is_a_whole_number(answer, number):
    record = {"id": 60, "problem": "Find m + n.", "answer": answer, "url": "x", "year": "2024"}

    question = AIME().question(record)

    assert (question.question_id, question.answer) == ("60", number)
    assert AIME.verifier.check(r"so m+n = \boxed{0" + number + "}", question).passed
    assert not AIME.verifier.check(rf"\boxed{{{number}}}? No: \boxed{{1}}", question).passed


@pytest.mark.parametrize("answer", ["1000", "-1", "3.5", "x", None, True])
def test_another_answer_is_not_one_of_aime(answer):
    with pytest.raises(ValueError, match="`answer`"):
        AIME().question({"problem": "Find m + n.", "answer": answer})


def test_answers_of_beyond_aime_may_be_larger():
    record = {"problem": "Find the remainder.", "answer": 123456}

    question = BeyondAIME().question(record)

    assert question.answer == "123456"
    assert question.question_id == BeyondAIME().question(record).question_id


def test_deepscaler_answers_are_latex_and_solutions_may_be_empty(tmp_path):
    records = [
        {"problem": "Solve $x^2 = 2$, $x > 0$.", "answer": r"\sqrt{2}", "solution": ""},
        {"problem": "What is $2^{-1}$?", "answer": "0.5", "solution": "Half."},
    ]
    (tmp_path / "deepscaler.json").write_text(json.dumps(records))

    read = read_split(DeepScaleR(source="hub", repo=str(tmp_path)), "train")

    assert read.frame["answer"].to_list() == [r"\sqrt{2}", "0.5"]
    question = DeepScaleR().question(records[1])
    assert DeepScaleR.verifier.check(r"\boxed{\frac{1}{2}}", question).passed


def test_a_problem_that_is_there_twice_is_named(tmp_path):
    record = {"problem": "What is $1+1$?", "answer": "2", "solution": ""}
    (tmp_path / "deepscaler.json").write_text(json.dumps([record, record]))

    with pytest.raises(StageError, match="duplicate question id"):
        read_split(DeepScaleR(source="hub", repo=str(tmp_path)), "train")

    assert (
        read_split(
            DeepScaleR(source="hub", repo=str(tmp_path), max_bad_rows=1), "train"
        ).frame.height
        == 1
    )


def test_every_second_problem_of_math_is_read_whole():
    if not (SHARED / "math").exists():
        pytest.skip(f"real samples are not at {SHARED}")

    read = read_split(MATH(files={"test": str(SHARED / "math/*_test.jsonl")}), "test")

    assert read.frame.height == 2_502
    assert read.bad_rows == ()
    assert read.frame["question_type"].n_unique() == 7
    assert read.frame["answer"].null_count() == 0
