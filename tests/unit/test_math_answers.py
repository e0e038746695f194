"""Which answers to math questions are the same, in either order, and which are not."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from mbt_cli.verifiers import algebra, latex
from mbt_cli.verifiers.math import MathVerifier

pytest.importorskip("math_verify", reason="needs the extra `math`")

DELIMITERS = (("$", "$"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]"))
PAIRS = [
    (row["answer"], row["other"], row["same"])
    for row in map(
        json.loads,
        (Path(__file__).parent / "data/math_answers.jsonl").read_text().splitlines(),
    )
]
TRIALS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/math_trials.jsonl").read_text().splitlines()
]
"""Pairs that math-verify's own tests are about, with its verdict, and why ours is another one."""


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: f"{trial['gold']}~{trial['answer']}")
def test_verdicts_are_those_of_math_verify_but_for_named_reasons(trial):
    expected = trial["math_verify"] is not ("differs" in trial)
    assert MathVerifier().same(trial["answer"], trial["gold"]) is expected
    assert MathVerifier().same(trial["gold"], trial["answer"]) is expected


@pytest.mark.parametrize(("answer", "other", "is_same"), PAIRS)
def test_two_answers_are_the_same_in_either_order(answer, other, is_same):
    verifier = MathVerifier()
    assert verifier.same(answer, other) is is_same
    assert verifier.same(other, answer) is is_same


@pytest.mark.parametrize("answer", sorted({pair[0] for pair in PAIRS if pair[2]}))
def test_an_answer_is_the_same_as_itself_in_every_delimiter(answer):
    for left, right in (*DELIMITERS, (r"\boxed{", "}")):
        assert MathVerifier().same(f"{left}{answer}{right}", answer)
        assert MathVerifier().same(f"{left} {answer} {right}.", answer)


def test_a_value_that_differs_is_not_asked_about(monkeypatch):
    asked = []
    monkeypatch.setattr(algebra, "equal", lambda *pair: bool(asked.append(pair)))
    golds = [
        r"\frac{14}{3}",
        r"3\sqrt{13}",
        "p - q",
        r"(3,\frac{\pi}{2})",
        "6-5i",
        r"1\pm\sqrt{19}",
    ]

    assert not any(MathVerifier().same(one, other) for one, other in pairwise(golds))

    assert not asked


def test_a_comparison_asks_a_limited_number_of_questions():
    asked = []
    many = ",".join(f"\\int_0^{{{number}}} x" for number in range(30))
    others = ",".join(f"\\int_1^{{{number}}} x" for number in range(30))

    def never(*pair):
        asked.append(pair)
        return False

    assert not latex.same(latex.read(many), latex.read(others), never)
    assert len(asked) == latex._MOST_QUESTIONS


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 900, "{" * 900, "\\{" * 400, "\\frac{" * 150, "|" * 900, "-" * 900, "^" * 900),
        *("1," * 490, "\\begin{pmatrix}" * 60, "x_" * 400, "!" * 900, "=" * 900, "\\pm" * 300),
        *("((((1),2),3),4)" * 50, "9" * 999, "." * 900, "\ud800", "\\", "\\text{", "\0", "٣", "½"),
    ],
    ids=lambda text: text[:9].encode("unicode_escape").decode(),
)
def test_any_text_is_read(text):
    assert not MathVerifier().same(text, "72")
    assert MathVerifier().same(text, text)
