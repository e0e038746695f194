"""The rules of lm-evaluation-harness for GSM8K, by its own verdicts on written replies."""

import json
from pathlib import Path

import pytest

from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.questions import Question
from mbt_cli.verifiers.number import NumberVerifier

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/gsm8k_rules.jsonl").read_text().splitlines()
]
"""Replies with a gold number, and whether lm-eval 0.4.13 scores them as right by each filter."""
RULES = ("strict", "flexible", "sentence")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row["reply"][-40:]))
def test_a_verdict_is_that_of_the_harness(rule, row):
    check = NumberVerifier(rule=rule).check(row["reply"], Question("q", "", row["gold"]))

    assert check.passed is row[rule]


def test_every_rule_decides_both_ways():
    assert len(ROWS) >= 60
    for rule in RULES:
        assert {row[rule] for row in ROWS} == {True, False}


def test_tags_do_not_count_and_thinking_does_not_either():
    verifier = NumberVerifier(rule="flexible")
    reply = "<think>It is 4, or 5.</think>It is 6. <answer>7</answer>"

    assert verifier.answer(reply, tagged="7") == "7"
    assert verifier.answer("<think>It is 4.</think>It is 6, I think", tagged="") == "6,"
    assert verifier.check("<think>6</think> 5", Question("q", "", "5")).passed


def test_a_rule_that_is_not_said_leaves_fingerprints_as_they_were():
    assert spec_of(NumberVerifier()) == {"kind": "number", "version": 2}
    assert spec_of(NumberVerifier(rule="strict"))["rule"] == "strict"
