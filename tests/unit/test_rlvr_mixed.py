"""Mixes with a verifier per row: the layout of AllenAI's sets, in rows of our own."""

import json
import subprocess
import sys
from dataclasses import replace

import orjson
import polars as pl
import pytest
from pydantic import ValidationError

from mbt_cli.benchmarks.rlvr_mixed import RLVRMixed
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import Submission, plugin_from, plugin_reference
from mbt_cli.errors import VerificationError
from mbt_cli.registry import VERIFIERS
from mbt_cli.verifiers.by_row import ByRowVerifier
from mbt_cli.verifiers.constraint import ConstraintVerifier
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.number import NumberVerifier
from mbt_cli.verifiers.text import TextVerifier
from tests.unit.split_reading import read_split


def record(dataset, prompt, truth):
    return {
        "messages": [{"role": "user", "content": prompt}],
        "ground_truth": truth,
        "dataset": dataset,
        "constraint_type": None,
        "constraint": None,
    }


ROWS = [
    record("gsm8k", "Question: 1+1?\nAnswer: 2\n\nQuestion: 2+3?", "5"),
    record("MATH", "Question: Half of one?", r"\frac{1}{2}"),
    record(
        "ifeval",
        "Name three rivers. Do not use any commas.",
        json.dumps({"func_name": "validate_no_commas", "N": None, "quantifier": None}),
    ),
]


def test_each_row_is_checked_by_the_verifier_of_its_data_set():
    gsm8k, math, ifeval = (RLVRMixed().question(row) for row in ROWS)
    check = RLVRMixed.verifier.check

    assert [q.question_type for q in (gsm8k, math, ifeval)] == ["gsm8k", "math", "ifeval"]
    assert gsm8k.question.endswith("2+3?")
    assert check("So the answer is 5.", gsm8k).passed
    assert not check("5 or 6", gsm8k).passed
    assert check(r"It is $\boxed{0.5}$.", math).passed
    assert check("Rhine; Elbe; Oder", ifeval).passed
    no = check("<think>Rhine, Elbe</think>Rhine, Elbe", ifeval)
    assert not no.passed
    assert [(part.name, part.passed) for part in no.parts] == [("validate_no_commas", False)]


def test_the_rows_of_a_hub_folder_become_questions_with_their_verifiers(tmp_path):
    (tmp_path / "data").mkdir()
    pl.DataFrame(ROWS).write_parquet(tmp_path / "data/train-00000-of-00001.parquet")

    frame = read_split(RLVRMixed(source="hub", repo=str(tmp_path)), "train").frame

    metadata = [orjson.loads(text) for text in frame["metadata"]]
    assert [one["verifier"] for one in metadata] == ["gsm8k", "math", "constraint"]
    assert metadata[2]["constraint"] == {"func_name": "validate_no_commas"}


def test_ifeval_rows_of_later_mixes_name_instructions():
    for package in ("nltk", "langdetect", "emoji", "syllapy"):
        pytest.importorskip(package, reason="needs the extra `instructions`")
    ids = ["punctuation:no_comma", "keywords:existence"]
    truth = str([{"instruction_id": ids, "kwargs": [None, {"keywords": ["owl"]}]}])
    question = RLVRMixed().question(record(["ifeval"], "Name a bird. No commas, say owl.", truth))

    check = RLVRMixed.verifier.check("An owl, or two", question)

    assert question.metadata["verifier"] == "instructions"
    assert [part.passed for part in check.parts] == [False, True]
    assert check.value == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "code"}, "`dataset` is 'code', and is checked if it is one of `gsm8k`"),
        ({"dataset": ["gsm8k", "MATH"]}, "`dataset` is"),
        ({"messages": []}, "no message of the user"),
        ({"messages": [{"role": "system", "content": "x"}]}, "no message of the user"),
        ({"ground_truth": None}, "`answer` is missing"),
        ({"dataset": "ifeval", "ground_truth": None}, "should be one object"),
        ({"dataset": "ifeval"}, "`ground_truth` should be one object"),
        ({"dataset": "ifeval", "ground_truth": "{"}, "`ground_truth` is neither JSON"),
        (
            {"dataset": "ifeval", "ground_truth": '{"func_name": "verify_luck"}'},
            "has the unknown `func_name` `verify_luck`",
        ),
        (
            {"dataset": "ifeval", "ground_truth": '{"func_name": "verify_bullet_points"}'},
            "has no `N`, which `verify_bullet_points` needs",
        ),
    ],
)
def test_a_malformed_record_says_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        RLVRMixed().question(ROWS[0] | change)


CONSTRAINTS = [
    ("verify_keywords", {"keyword_list": ["Blue", "owl"]}, "A blue OWL", "A blue bird"),
    ("verify_keyword_frequency", {"word": "cat", "N": 2}, "Cat and cat", "cat cat category cat"),
    ("validate_forbidden_words", {"forbidden_words": ["no"]}, "yes", "nothing"),
    ("verify_letter_frequency", {"letter": "e", "N": 2}, "eE e", "E e"),
    ("verify_paragraph_count", {"N": 2}, "One\n* * *\nTwo", "One\n***\nTwo"),
    ("verify_paragraph_count", {"N": 2}, "One * * * Two", "* * *\nTwo"),
    ("validate_word_constraint", {"N": 3, "quantifier": "at least"}, "a b c d", "a b"),
    ("validate_word_constraint", {"N": 3, "quantifier": "at most"}, "a b", "a b c d"),
    ("validate_word_constraint", {"N": 20, "quantifier": "around"}, "a " * 22, "a " * 23),
    ("verify_sentence_constraint", {"N": 2, "quantifier": "around"}, "A. B. C.", "A. B. C. D."),
    ("verify_sentence_constraint", {"N": 2, "quantifier": "at least"}, "Hi! Ho.", "Mr. Hi e.g. ho"),
    ("validate_paragraphs", {"N": 2, "first_word": "So", "i": 2}, "A\n\nSo b", "So\n\nb"),
    ("verify_postscript", {"postscript_marker": "P.S."}, "Bye. P.S. Write.", "Bye. P.S."),
    ("validate_placeholders", {"N": 2}, "[a] and [b]", "[a] and b"),
    ("verify_bullet_points", {"N": 2}, "* a\n - b", "* a\n* b\n* c"),
    ("validate_title", {}, "<<Joy>>\nText", "<Joy>"),
    ("validate_choice", {"options": ["yes", "no"]}, "I say yes.", "maybe"),
    ("validate_highlighted_sections", {"N": 2}, "*a* and *b*", "*a* and b"),
    (
        "validate_sections",
        {"N": 2, "section_splitter": "SECTION"},
        "Section 1 a\nsection2",
        "SECTION",
    ),
    ("validate_json_format", {}, '{"a": 1}', "a: 1"),
    ("validate_repeat_prompt", {"original_prompt": "Say hi."}, "Say hi. Hi.", "Hi."),
    ("validate_two_responses", {}, "a ****** b", "a ****** a"),
    ("validate_uppercase", {}, "ALL 1", "All"),
    ("validate_lowercase", {}, "all 1", "All"),
    ("validate_frequency_capital_words", {"N": 1, "quantifier": "at most"}, "A bc", "AB CD"),
    ("validate_end", {"end_phrase": "The end."}, "So. The end.", "The end. Or?"),
    ("validate_quotation", {}, '"Hi"', '"Hi" he said'),
    ("validate_no_commas", {}, "a b", "a, b"),
]


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), CONSTRAINTS)
def test_a_constraint_is_followed_or_not(name, arguments, right, wrong):
    question = Question("q", "", "", metadata={"constraint": {"func_name": name, **arguments}})
    check = ConstraintVerifier().check

    assert check(f"<think>Hm, {wrong}</think>\n<answer>{right}</answer>\n", question).value == 1
    assert check(wrong, question).value == 0


@pytest.mark.parametrize(
    "reply", ["", " \n", "<think>hm</think>", "<think>hm", "<answer></answer>"]
)
@pytest.mark.parametrize("name", ["validate_no_commas", "validate_lowercase"])
def test_an_empty_reply_follows_no_constraint(name, reply):
    question = Question("q", "", "", metadata={"constraint": {"func_name": name}})

    found = ConstraintVerifier().check(reply, question)

    assert (found.value, found.parts[0].detail) == (0, "the reply is empty")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("validate_choice", {"options": "yes or no"}, "`options` is `yes or no`, not a list of"),
        ("verify_keywords", {"keyword_list": []}, "`keyword_list` has no text"),
        ("verify_keyword_frequency", {"word": 3, "N": 2}, "`word` is `3`, not a text"),
        ("validate_placeholders", {"N": "2"}, "`N` is `2`, not a whole number"),
        ("validate_end", {"end_phrase": ""}, "`end_phrase` is an empty text"),
    ],
)
def test_a_wrong_argument_of_a_constraint_gives_no_verdict(name, arguments, message):
    question = Question("q", "", "", metadata={"constraint": {"func_name": name, **arguments}})

    with pytest.raises(VerificationError, match=f"{name}: {message}"):
        ConstraintVerifier().check("yes", question)


@pytest.mark.parametrize(
    ("name", "arguments", "reply"),
    [
        ("validate_placeholders", {"N": 1}, "[" * 1_000_000),
        ("validate_title", {}, "<" * 1_000_000),
    ],
)
def test_a_constraint_reads_a_long_reply_once(name, arguments, reply):
    question = Question("q", "", "", metadata={"constraint": {"func_name": name, **arguments}})

    # searching again from each bracket would take hours
    assert not ConstraintVerifier().check(reply, question).passed


def test_the_language_of_a_reply_is_told_the_same_way_each_time():
    pytest.importorskip("langdetect", reason="needs the extra `instructions`")
    constraint = {"func_name": "validate_response_language", "language": "de"}
    question = Question("q", "", "", metadata={"constraint": constraint})
    verifier = ConstraintVerifier()

    assert verifier.check("Der Fluss ist lang und sehr alt.", question).passed
    assert not verifier.check("The river is long and very old.", question).passed
    assert not verifier.check("123", question).passed


def mixed():
    return ByRowVerifier(
        verifiers={"words": TextVerifier(), "number": NumberVerifier(rule="flexible")}
    )


def asked(name, gold="5"):
    return Question("q", "", gold, metadata={"verifier": name} if name else {})


def test_replies_are_checked_in_their_order_and_one_without_a_rule_fails_alone():
    submissions = [
        Submission("It is 5", asked("number")),
        Submission("<answer>Oslo</answer>", asked("words", "oslo")),
        Submission("It is 5", asked("numbers")),
        Submission("It is 5", asked(None)),
        Submission("It is 6", asked("number")),
    ] * 300

    found = list(mixed().check_all(submissions))

    assert len(found) == 1_500
    right, words, wrong_name, no_name, wrong = found[-5:]
    assert (right.passed, words.passed, wrong.passed) == (True, True, False)
    assert "names the verifier `numbers`; did you mean `number`?" in str(wrong_name)
    assert "names no verifier; there are `number`, `words`" in str(no_name)
    with pytest.raises(VerificationError):
        mixed().check("5", asked("other"))


def test_a_row_without_a_verdict_has_no_value():
    questions = [asked("number"), asked("number", "6"), asked("other")]
    frame = pl.DataFrame(
        {
            "question_id": ["a", "b", "c"],
            "sample": [0, 0, 0],
            "answer": [None] * 3,
            "reply": ["It is 5"] * 3,
            "gold_answer": [q.answer for q in questions],
            "gold_aliases": [[]] * 3,
            "failure": [None] * 3,
            "metadata": [json.dumps(dict(q.metadata)) for q in questions],
        },
        schema_overrides={"answer": pl.String, "failure": pl.String},
    )

    assert mixed().values(frame).to_list() == [1, 0, None]


def test_a_manifest_names_the_members_by_kind():
    table = {
        "kind": "by_row",
        "verifiers": {"a": "math", "b": {"kind": "number", "rule": "strict"}},
    }

    made = VERIFIERS.make(table)

    assert made.verifiers == {"a": MathVerifier(), "b": NumberVerifier(rule="strict")}
    assert spec_of(made)["verifiers"] == {
        "a": {"kind": "math", "version": 3},
        "b": {"kind": "number", "version": 2, "rule": "strict"},
    }
    assert len({made, VERIFIERS.make(table), replace_member(made)}) == 2


def replace_member(made):
    return ByRowVerifier(verifiers={**made.verifiers, "a": TextVerifier()})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a": "numbr"}, "did you mean `number`"),
        ({"a": {"kind": "number", "rule": "loose"}}, "rule"),
        ({"a": 5}, "no kind of verifier `None`"),
        ({}, "at least 1 item"),
    ],
)
def test_a_wrong_member_is_said(members, message):
    with pytest.raises(ValidationError, match=message):
        VERIFIERS.make({"kind": "by_row", "verifiers": members})


def test_a_mix_reaches_a_process_without_the_registry():
    reference = json.dumps(plugin_reference(RLVRMixed.verifier))
    program = """
import json, sys
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import plugin_from
verifier = plugin_from(json.loads(sys.argv[1]))
question = Question("q", "", "5", metadata={"verifier": "gsm8k"})
print(verifier.check("It is 5.", question).passed, "mbt_cli.registry" in sys.modules)
"""

    done = subprocess.run(
        [sys.executable, "-c", program, reference], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["True", "False"]
    assert plugin_from(json.loads(reference)) == RLVRMixed.verifier


def test_a_setting_that_is_not_said_leaves_the_jobs_of_trainings_as_they_were():
    assert plugin_reference(NumberVerifier())["settings"] == {}
    assert plugin_reference(MathVerifier(rule="qwen"))["settings"] == {"rule": "qwen"}
    question = replace(asked("number"), answer="5")
    assert plugin_from(plugin_reference(mixed())).check("5", question).passed
