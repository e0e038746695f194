"""The references of HumanEval and MBPP pass, and programs made from them are judged as plainly.

MBT_SANDBOX_MUTANTS is the number of mutants that are drawn, `all` for ten of each reference.
"""

import gzip
import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from mbt_cli.benchmarks.humaneval import HumanEval
from mbt_cli.benchmarks.mbpp import MBPP
from mbt_cli.core.verifier import Submission
from mbt_cli.verifiers.code_tests import CodeTestsVerifier
from tests.integration.sandbox import mutants

EACH = 10
DRAWN = os.environ.get("MBT_SANDBOX_MUTANTS", "150")


@pytest.fixture(scope="module")
def humaneval(shared):
    with gzip.open(shared / "data/humaneval/HumanEval.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def mbpp(shared):
    with (shared / "data/mbpp/mbpp.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def wrong_ones(verifier, questions, replies):
    found = verifier.check_all(map(Submission, replies, questions))
    return [q.question_id for q, check in zip(questions, found, strict=True) if not check.passed]


@pytest.mark.parametrize("style", ["continuation", "whole function in a block"])
def test_all_references_of_humaneval_pass(humaneval, style):
    questions = [HumanEval().question(record) for record in humaneval]
    replies = [record["canonical_solution"] for record in humaneval]
    if style != "continuation":
        replies = [f"```python\n{r['prompt']}{r['canonical_solution']}```" for r in humaneval]

    assert wrong_ones(HumanEval.verifier, questions, replies) == []
    assert len(questions) == 164


def test_all_references_of_mbpp_pass(mbpp):
    questions = [MBPP().question(record) for record in mbpp]

    wrong = wrong_ones(MBPP.verifier, questions, [record["code"] for record in mbpp])

    # 123 takes about 4 s of the processor: it may reach the limit on a slow one
    assert set(wrong) <= {"mbpp-123"}
    assert len(questions) == 974


def made(humaneval, mbpp):
    """Question, mutant, and the program and tests as a plain interpreter runs them."""
    sources = [
        (
            HumanEval().question(record),
            record["prompt"] + record["canonical_solution"],
            f"{record['test']}\ncheck({record['entry_point']})",
            record["entry_point"],
        )
        for record in humaneval
    ]
    sources += [
        (
            MBPP().question(record),
            record["code"],
            "\n".join([record["test_setup_code"], *record["test_list"]]),
            None,
        )
        for record in mbpp
    ]
    each = EACH
    if DRAWN != "all":
        number = min(int(DRAWN), len(sources))
        each = -(-int(DRAWN) // len(sources))
        sources = random.Random(24).sample(sources, number)
    return [
        (question, program, tests)
        for question, source, tests, function in sources
        for program in mutants.mutants(source, each, question.question_id, function)
    ]


def test_mutants_are_judged_as_by_a_plain_interpreter(humaneval, mbpp):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the references' own text
        chosen = made(humaneval, mbpp)
    verifier = CodeTestsVerifier(timeout_seconds=mutants.CPU_SECONDS, packages=())
    lines = [json.dumps({"program": program, "tests": tests}) for _, program, tests in chosen]
    plain = subprocess.run(
        [sys.executable, str(Path(mutants.__file__))],
        input="\n".join(lines),
        env={"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = [json.loads(line) for line in plain.stdout.splitlines()]

    submissions = [Submission(f"```python\n{program}\n```", q) for q, program, _ in chosen]
    checks = verifier.check_all(submissions)

    differ = [
        (question.question_id, want, check, program)
        for (question, program, _), want, check in zip(chosen, wanted, checks, strict=True)
        if check.passed is not want
    ]
    assert len(wanted) == len(chosen)
    assert differ == []
    assert 0.7 < 1 - sum(wanted) / len(wanted) < 1  # most mutants are wrong, and some are not
