"""Verifiers: what they read as the answer, what counts as the same, and who uses them."""

import json
from pathlib import Path

import polars as pl
import pytest

from mbt_cli.benchmarks.math500 import MATH500
from mbt_cli.core.measures import ScoreInputs
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import plugin_from, plugin_reference
from mbt_cli.plugins import use_study_plugins
from mbt_cli.registry import VERIFIERS
from mbt_cli.scores.answers import MathMatch
from mbt_cli.scores.at_k import AvgAtK, MajAtK
from mbt_cli.scores.scoring import math_values
from mbt_cli.stages.inputs import kept
from mbt_cli.verifiers.math import MathVerifier, final_answer, last_boxed
from mbt_cli.verifiers.number import NumberVerifier, last_number
from mbt_cli.verifiers.rewards import REWARDS, GradedReply
from mbt_cli.verifiers.text import TextVerifier, extract_answer

PAIRS = Path(__file__).parent / "data/math_pairs.jsonl"
PARITY = """
from typing import Literal
from mbt_cli.interfaces import Verifier

class Parity(Verifier):
    kind: Literal["parity"] = "parity"

    def answer(self, reply, *, tagged=None):
        return reply.split()[-1]

    def same(self, given, wanted):
        return int(given) % 2 == int(wanted) % 2
"""
STUDY = """
[study]
name = "sums"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 16

[models.m]
backend = { kind = "canned", replies = ["It is <answer>2</answer>"] }
sampling = "plain"

[models.small]
backend = { kind = "transformers", model = "org/small", context = 2048 }
sampling = "plain"

[benchmarks.b]
kind = "KIND"
files = { train = "FILE" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "b", split = "train", model = "m" }
prompt = "question"
samples = 2

[[stage]]
kind = "score"
name = "plain"
rollouts = "base"
metrics = ["exact_match", "math_match", "pass_at_k"]

[[stage]]
kind = "score"
name = "words"
rollouts = "base"
metrics = ["exact_match", "pass_at_k"]

[[stage]]
kind = "score"
name = "of"
rollouts = "base"
metrics = [{ kind = "avg_at_k", of = "math_match" }, { kind = "aes", accuracy = "math_match" }]
baseline = { model = "m" }

[[stage]]
kind = "score"
name = "majority"
rollouts = "base"
metrics = ["maj_at_k"]

[[stage]]
kind = "train"
name = "all"
preset = "sft"
matrix = { model = "small" }
data = { stage = "base", where = { model = "m" } }
target = "reply"
keep = "answered"

[[stage]]
kind = "train"
name = "right"
preset = "sft"
matrix = { model = "small" }
data = { stage = "base", where = { model = "m" } }
target = "reply"
keep = "correct"

[[stage]]
kind = "train"
name = "rewarded"
preset = "grpo"
matrix = { model = "small" }
questions = { benchmark = "b", split = "train" }
reward = { exact_match = 1, format = 0.1 }

[[stage]]
kind = "train"
name = "short"
preset = "grpo"
matrix = { model = "small" }
questions = { benchmark = "b", split = "train" }
reward = "format"
"""


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
        ("16-7", "7"),
        ("(3,5)", "5"),
        ("1,00,000", "100000"),
        (r"$10,\!080$", "10080"),
        ("x = \N{MINUS SIGN}4", "-4"),
        ("none", None),
    ],
)
def test_the_last_number_without_commas_is_the_one(text, number):
    assert last_number(text) == number


def test_gsm8k_reads_a_mark_where_there_is_neither_tag_nor_box():
    assert NumberVerifier().answer("16 - 7 = 9, 9 x 2 = 18\n#### 18") == "18"
    assert NumberVerifier().answer("it is 18") is None


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


@pytest.mark.parametrize(
    ("given", "wanted", "is_same"),
    [
        (".5", "0.5", True),
        ("1.50", "1.5", True),
        ("-.5", "-0.5", True),
        ("007", "7", True),
        ("7/2", "3.5", True),
        ("7/2", "2", False),
        (r"\frac{7}{2}", "2", False),
        ("3 1/2", "3.5", True),
        ("1/0", "0", False),
        ("3,5", "35", False),
        ("9" * 5_000, "9" * 5_000, True),
        ("9" * 5_000, "9", False),
        ("5", "-5", False),
    ],
)
def test_numbers_are_compared_by_value(given, wanted, is_same):
    assert NumberVerifier().same(given, wanted) is is_same
    assert NumberVerifier().same(wanted, given) is is_same


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


@pytest.fixture(scope="module")
def pairs():
    """200 replies made by rule, with a gold answer and whether the reply is right.

    Lost signs and decimal points, fractions, roots, tuples, intervals, degrees, polynomials and
    words; tagged, boxed, both, behind a think block with another answer, or without an answer.
    """
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    found = pl.DataFrame([json.loads(line) for line in PAIRS.read_text().splitlines()])
    assert found.height == 200
    return found.with_row_index("number").with_columns(
        question_id=pl.format("q{}", "number"),
        sample=pl.lit(0, pl.Int64),
        answer=pl.col("reply").map_elements(extract_answer, return_dtype=pl.String),
        gold_answer="gold",
        gold_aliases=pl.lit([], pl.List(pl.String)),
        finish_reason=pl.lit("stop"),
        failure=pl.lit(None, pl.String),
    )


def test_keep_and_the_reward_of_grpo_agree_with_math_match(pairs):
    verifier = MATH500.verifier
    right = pairs.filter("right")["question_id"].to_list()

    matched = math_values(ScoreInputs(pairs, verifier)) == 1
    correct = kept(pairs, "correct", verifier=verifier)
    wrong = kept(pairs, "wrong", verifier=verifier)
    rewards = [
        REWARDS["exact_match"](GradedReply(reply, answer, Question(name, "", gold), verifier))
        for name, reply, answer, gold in pairs.select(
            "question_id", "reply", "answer", "gold"
        ).iter_rows()
    ]

    assert pairs.filter(matched)["question_id"].to_list() == right
    assert correct["question_id"].to_list() == right
    assert sorted([*correct["question_id"], *wrong["question_id"]]) == sorted(pairs["question_id"])
    assert pairs.filter(pl.Series(rewards) == 1)["question_id"].to_list() == right


def test_a_frame_is_checked_as_each_reply_is(pairs):
    for verifier in (TextVerifier(), NumberVerifier(), MathVerifier()):
        checks = [
            verifier.check(reply, Question(name, "", gold)).value
            for name, reply, gold in pairs.select("question_id", "reply", "gold").iter_rows()
        ]
        assert verifier.values(pairs).to_list() == checks


@pytest.mark.parametrize(
    ("verifier", "answers"),
    [
        (MathVerifier(), (r"\frac{1}{2}", "0.5", "5", "-5", "0.50")),
        (NumberVerifier(), ("$1,080", "1080.00", "1,081", "-1080", "1080")),
        (TextVerifier(), ("The Nile.", "nile", "Rhine", "the Rhône", "NILE")),
    ],
)
def test_votes_are_pooled_by_the_verifier(verifier, answers):
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    frame = cell(verifier, *((f"<answer>{answer}</answer>", answers[0]) for answer in answers))
    rollouts = frame.rollouts.with_columns(
        question_id=pl.lit("q"),
        sample=pl.int_range(pl.len(), dtype=pl.Int64),
        answer=pl.Series(answers),
    )
    # rows in any order vote alike
    inputs = ScoreInputs(rollouts.reverse(), verifier)

    of = "exact_match" if isinstance(verifier, TextVerifier) else "math_match"
    found = {measure.metric: measure for measure in MajAtK(of=of, k=[5]).measure(inputs)}

    (winner,) = (m for name, m in found.items() if "published" not in name)
    assert winner.questions["value"].to_list() == [1.0]


@pytest.mark.parametrize("verifier", [MathVerifier(), NumberVerifier()])
def test_a_box_in_thinking_that_was_cut_is_no_answer(verifier):
    replies = (
        r"<think>so \boxed{7} or",
        r"[THINK]so \boxed{7} or",
        r"<think>so</think>It is \boxed{7}, and",
        r"It is \boxed{7}, and",
    )
    inputs = cell(verifier, *((reply, "7") for reply in replies))
    cut = inputs.rollouts.with_columns(finish_reason=pl.lit("length"))
    whole = inputs.rollouts.with_columns(finish_reason=pl.lit("stop"))

    assert verifier.values(cut).to_list() == [0, 0, 1, 1]
    assert verifier.values(whole).to_list() == [1, 1, 1, 1]
    assert verifier.votes(cut, cut["reply"]).to_list() == ["", "", "7", "7"]


def majority(*replies, gold, of="math_match"):
    """avg@k and maj@k over all samples of one question of a benchmark that compares words."""
    inputs = cell(TextVerifier(), *((reply, gold) for reply in replies))
    rollouts = inputs.rollouts.with_columns(
        question_id=pl.lit("q"),
        sample=pl.int_range(pl.len(), dtype=pl.Int64),
        answer=pl.col("reply").map_elements(extract_answer, return_dtype=pl.String),
    )
    inputs = ScoreInputs(rollouts, inputs.verifier)
    scores = (AvgAtK(of=of, k=[len(replies)]), MajAtK(of=of, k=[len(replies)]))
    found = [measure for score in scores for measure in score.measure(inputs)]
    return [
        measure.questions["value"].item() for measure in found if "published" not in measure.metric
    ]


def test_boxed_answers_vote_where_math_decides():
    assert majority(r"\boxed{7}", r"so \boxed{7}", "none", gold="7") == [2 / 3, 1]


@pytest.mark.parametrize(("right", "wrong"), [("1.5", "15"), ("-3", "3")])
def test_numbers_that_differ_as_math_are_other_votes(right, wrong):
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    said = [f"<answer>{answer}</answer>" for answer in (right, right, right, wrong, wrong)]

    # pooled, the one answer would score 3 of 5
    assert majority(*said, gold=right) == [3 / 5, 1]
    assert majority(*said, gold=wrong) == [2 / 5, 0]


def test_equal_numbers_in_other_forms_are_one_vote():
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    said = [f"<answer>{answer}</answer>" for answer in ("0.5", r"\frac{1}{2}", "2", "3")]

    assert majority(*said, gold="0.5") == [1 / 2, 1]


def test_a_verifier_enters_a_fingerprint_only_where_it_decides_and_is_not_that_of_words(
    load, tmp_path
):
    records = tmp_path / "b.jsonl"
    record = {"unique_id": "m", "problem": "?", "question": "?", "answer": "1", "level": 1}
    records.write_text(json.dumps({**record, "subject": "Algebra"}))
    study = STUDY.replace("FILE", str(records))
    math = load(study.replace("KIND", "math500")).cells
    words = load(study.replace("KIND", "question_answer")).cells

    found = {
        address.split("/")[0]: cell.spec["verifiers"]
        for address, cell in math.items()
        if "verifiers" in cell.spec
    }

    one = {"b": {"kind": "math", "version": 3}}
    assert found == dict.fromkeys(("plain", "of", "majority", "right", "rewarded"), one)
    by_math = {a.split("/")[0]: cell.spec.get("verifiers") for a, cell in words.items()}
    assert {stage for stage, found in by_math.items() if found == one} == {"plain", "of"}
    assert not any(found for stage, found in by_math.items() if stage not in ("plain", "of"))


def test_a_verifier_reaches_the_process_that_trains():
    assert plugin_from(plugin_reference(MATH500.verifier)) == MathVerifier()


def test_a_verifier_of_a_study_reaches_the_process_that_trains(tmp_path):
    path = tmp_path / "parity.py"
    path.write_text(PARITY)
    use_study_plugins([path])
    parity = VERIFIERS.make({"kind": "parity"})

    found = plugin_from(plugin_reference(parity))

    assert found.check("so 4", Question("q", "", "2")).passed
    assert not found.check("so 5", Question("q", "", "2")).passed
