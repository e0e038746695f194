"""How published evaluations of MATH decide, by lm-evaluation-harness' own verdicts."""

import json
import time
from pathlib import Path

import pytest

from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import plugin_from, plugin_reference
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.math_rules import minerva_answer, minerva_form

pytest.importorskip("math_verify", reason="needs the extra `math`")

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/math_rules.jsonl").read_text().splitlines()
]
"""Replies with the boxed answer of a solution, and whether lm-eval 0.4.13 scores them as right:
`exact_match` of minerva_math and of hendrycks_math, with sympy 1.14 and ANTLR 4.11."""


@pytest.mark.parametrize("rule", ["minerva", "hendrycks"])
def test_verdicts_are_those_of_the_harness(rule):
    verifier = MathVerifier(rule=rule)

    found = [verifier.check(row["reply"], Question("q", "", row["gold"])) for row in ROWS]

    wrong = [row for row, check in zip(ROWS, found, strict=True) if check.passed is not row[rule]]
    assert not wrong
    assert {check.passed for check in found} == {True, False}


def test_the_order_of_two_answers_does_not_matter():
    verifier = MathVerifier(rule="minerva")

    assert verifier.same("x+y", "y+x")
    assert verifier.same("y+x", "x+y")
    assert not verifier.same("", "")


def test_an_expression_that_never_ends_is_wrong_and_stops():
    started = time.process_time()

    assert not MathVerifier(rule="minerva").same("9^{9^{9^{9}}}", "72")

    assert time.process_time() - started < 5  # the worker pays for it, not this process


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"so $\boxed{\frac{3}{4}}$. The answer is 1", r"\frac{3}{4}"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        ("The answer is $5$.\n\nQuestion: more\nAnswer: The answer is 6.", "5"),
        ("So the answer is: 7.", "7"),
        (r"The answer is 63\pi", r"63\pi"),
        ("The answer is x = 5 cm. ", "x = 5 cm"),
        (r"<answer>4</answer> \boxed{5}", "5"),
        (r"<think>\boxed{4}</think> It is 5", None),
        ("", None),
    ],
)
def test_qwen_reads_the_last_box_else_the_first_sentence(reply, answer):
    assert MathVerifier(rule="qwen").answer(reply, tagged="9") == answer


@pytest.mark.parametrize(
    ("reply", "gold", "verdicts"),
    [
        # unsaid, qwen, minerva, hendrycks
        (r"so it is $\boxed{0.5}$", r"\frac{1}{2}", (True, True, False, False)),
        ("The answer is 0.5.", r"\frac{1}{2}", (False, True, False, False)),
        (" $x$ is half, that is $0.5$", r"\frac{1}{2}", (False, False, False, False)),
        (" $0.5$", r"\frac{1}{2}", (False, False, False, True)),
        (
            r"Final Answer: The final answer is $0.5$. I hope it is correct.",
            r"\frac{1}{2}",
            (False, False, True, True),
        ),
    ],
)
def test_one_reply_by_each_rule(reply, gold, verdicts):
    rules = (None, "qwen", "minerva", "hendrycks")

    found = [MathVerifier(rule=rule).check(reply, Question("q", "", gold)).passed for rule in rules]

    assert tuple(found) == verdicts


def test_a_rule_that_is_not_said_leaves_fingerprints_as_they_were():
    assert spec_of(MathVerifier()) == {"kind": "math", "version": 3}
    assert spec_of(MathVerifier(rule="qwen")) == {"kind": "math", "version": 3, "rule": "qwen"}


def test_a_rule_reaches_the_process_that_trains():
    verifier = MathVerifier(rule="minerva")

    assert plugin_from(plugin_reference(verifier)) == verifier


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a " * 5_000, id="no dollar"),
        pytest.param(r"\text{" * 2_000, id="texts that stay open"),
        pytest.param(r"\boxed{" * 2_000, id="boxes that stay open"),
        pytest.param("sqrt[" * 2_000, id="roots that stay open"),
        pytest.param("Final Answer: The final answer is" * 300 + "\n", id="statements"),
    ],
)
def test_the_time_of_minervas_rule_grows_with_the_text_alone(text):
    def seconds(times):
        started = time.process_time()
        minerva_answer(text * times)
        minerva_form.__wrapped__(text * times)
        return time.process_time() - started

    # what reads a text from each of its places takes 64 times as long for 8 texts
    assert seconds(8) < 32 * max(seconds(1), 0.01)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("$5$ and $6$ more", "5"),
        ("x$5", "x5"),
        (r"\text{a}\text{b", r"a\text{b"),
        (r"\boxed{1}\boxed{2}", r"1}\boxed{2"),
        (r"\boxed{1", r"\boxed{1"),
        ("sqrt[3]x", "sqrt[3]{x}"),
        ("sqrt[3", "sqrt[3"),
    ],
)
def test_what_stays_open_stays_in_minervas_form(answer, form):
    assert minerva_form(answer) == form
