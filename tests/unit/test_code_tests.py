"""`code_tests`: the program of a reply, and what its tests say."""

import json
import time
from pathlib import Path

import pytest

from mbt_cli.benchmarks.apps import APPS
from mbt_cli.benchmarks.humaneval import HumanEval
from mbt_cli.benchmarks.mbpp import MBPP
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import Submission
from mbt_cli.errors import UsageError, VerificationError
from mbt_cli.sandbox import pool
from mbt_cli.sandbox.examiner import different_output, same_result
from mbt_cli.verifiers.code_tests import CodeTestsVerifier, program_in

DATA = Path(__file__).with_name("data") / "code"
CODE = "def f(x):\n    return x\n"
VOWELS = "sum(letter in 'aeiou' for letter in word.lower())"


def questions(benchmark, name):
    lines = (DATA / name).read_text().splitlines()
    return [benchmark.question(json.loads(line)) for line in lines]


@pytest.fixture(scope="module", autouse=True)
def _sandbox():
    try:
        CodeTestsVerifier().prepare()
    except UsageError as error:
        pytest.skip(error.message)
    yield
    pool.close()


# The program of a reply


@pytest.mark.parametrize(
    ("reply", "names", "continues", "program"),
    [
        pytest.param(CODE, {"f"}, False, CODE, id="nothing but code"),
        pytest.param(f"So:\n```python\n{CODE}```\nDone.", {"f"}, False, CODE, id="one block"),
        pytest.param(f"```Python\n{CODE}```\n```python\nf(1)\n```", {"f"}, False, CODE, id="use"),
        pytest.param(
            f"```\ndef f(x): 1\n```\nBetter:\n```py\n{CODE}```", {"f"}, False, CODE, id="the last"
        ),
        pytest.param(f"```python\n{CODE}```\n```text\nf\n```", (), False, CODE, id="not Python"),
        pytest.param(f"~~~python\n{CODE}~~~", {"f"}, False, CODE, id="tildes"),
        pytest.param(f"  ```python\n{CODE}  ```", {"f"}, False, CODE, id="indented fence"),
        pytest.param(f"Here:\n```python\n{CODE}", {"f"}, False, CODE, id="never closed"),
        pytest.param(f"{CODE}```\nThat is it.", {"f"}, False, CODE, id="trailing fence"),
        pytest.param(f"{CODE}[DONE]\nYou are an", {"f"}, False, CODE, id="DONE"),
        pytest.param(f"[BEGIN]\n{CODE}[DONE]", {"f"}, False, f"\n{CODE}", id="BEGIN and DONE"),
        pytest.param("    return x\n", {"f"}, True, "    return x\n", id="a continuation"),
        pytest.param(
            "    return x\n```\nIt is\n```python\nf(1)\n```", {"f"}, True, "    return x\n",
            id="a continuation and a fence",
        ),
        pytest.param("```python\n    return x\n```", {"f"}, True, "    return x\n", id="its block"),
        pytest.param("", {"f"}, False, "", id="nothing"),
        pytest.param(
            f"```python\nfirst\n```python\n{CODE}```", {"f"}, False, CODE, id="opened twice"
        ),
        pytest.param(
            "1. Do:\n   ```python\n   def f(x):\n       return x\n   ```\n2. Done", {"f"}, False,
            CODE, id="in a list",
        ),
        pytest.param(
            "- Do:\n  ```python\n  def f(x):\n      return x\n", {"f"}, False, CODE,
            id="in a list, never closed",
        ),
        pytest.param(
            f'```python\n{CODE}    """\n    ```\n    """\n```', {"f"}, False,
            f'{CODE}    """\n    ```\n    """\n', id="a fence in a docstring",
        ),
    ],
)  # fmt: skip
def test_the_program_is_found(reply, names, continues, program):
    assert program_in(reply, names, continues=continues) == program


def test_thinking_is_no_program():
    verifier = CodeTestsVerifier()

    assert verifier.answer(f"<think>```python\nx\n```</think>```python\n{CODE}```") == CODE
    assert verifier.answer("") is None


# What is the same


@pytest.mark.parametrize(
    ("given", "wanted", "is_same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("1  2 \n\n3", "1 2\n3\n", True),
        ("0.333333", "0.33333333333", True),
        ("0.3334", "0.33333333333", False),
        ("1e3", "1000.0", True),
        ("1000", "1000.0", True),
        ("1", "2", False),
        ("10000000000000000001", "10000000000000000002", False),
        ("a\nb", "b\na", False),
        ("a b", "a\nb", False),
        ("", "", True),
        ("YES", "Yes", False),
        ("nan", "nan", True),
    ],
)
def test_output_is_compared_by_lines_and_words(given, wanted, is_same):
    assert (different_output(given, wanted) == "") is is_same


@pytest.mark.parametrize(
    ("found", "wanted", "is_same"),
    [
        ((1, 2), [1, 2], True),
        ([(1, 2)], [[1, 2]], True),
        (3, [3], True),
        ([3], [3], True),
        ([3], 3, False),
        ({1: 2}, {"1": 2}, True),
        ({"1": 2}, {"1": 2}, True),
        (True, True, True),
        ("3", 3, False),
        (None, [], False),
    ],
)
def test_results_are_compared_as_json(found, wanted, is_same):
    assert same_result(found, wanted) is is_same


# The layouts


@pytest.mark.parametrize(
    ("benchmark", "name"),
    [(MBPP(), "mbpp.jsonl"), (HumanEval(), "humaneval.jsonl"), (APPS(), "apps.jsonl")],
    ids=["mbpp", "humaneval", "apps"],
)
def test_references_pass_in_each_layout(benchmark, name):
    asked = [one for one in questions(benchmark, name) if one.answer[0] != "#"]
    submissions = [Submission(f"```python\n{one.answer}\n```", one) for one in asked]

    if name == "humaneval.jsonl":
        submissions = [
            Submission("    " + one.answer + "\n", one)  # as the continuation of the prompt
            for one in asked
        ]
    checks = list(benchmark.verifier.check_all(submissions))

    assert [check.passed for check in checks] == [True] * len(asked), checks
    assert all(check.value == 1 and check.cpu_seconds > 0 for check in checks)


def test_a_whole_function_passes_too_and_helpers_of_the_prompt_are_there():
    shifted, helped = questions(HumanEval(), "humaneval.jsonl")[1:]
    replies = [
        'def unshifted(t):\n    return "".join(chr((ord(c) - 100) % 26 + 97) for c in t)',
        "from __future__ import annotations\ndef root(xs):\n    return -xs[0] / xs[1]",
    ]

    checks = list(HumanEval.verifier.check_all(map(Submission, replies, (shifted, helped))))

    assert [check.passed for check in checks] == [True, True], checks


def test_a_helper_of_the_prompt_cannot_be_replaced():
    _, _, helped = questions(HumanEval(), "humaneval.jsonl")
    cheat = "def polynomial(xs, x): return 0\ndef root(xs): return 7"

    assert not HumanEval.verifier.check(cheat, helped).passed


def test_a_continuation_ends_where_the_next_function_begins():
    first = questions(HumanEval(), "humaneval.jsonl")[0]
    rest = "\ndef largest_gap_again(x)\n    this is not Python"

    assert HumanEval.verifier.check(f"    {first.answer}\n{rest}", first).passed


def test_each_test_is_a_part_with_what_went_wrong():
    first = questions(MBPP(), "mbpp.jsonl")[0]
    reply = "```python\ndef vowels(word):\n    print('seen', word)\n    return 2\n```"

    check = CodeTestsVerifier(value="share").check(reply, first)

    assert [part.passed for part in check.parts] == [True, False, False]
    assert check.value == pytest.approx(1 / 3)
    assert not check.passed
    assert "rhythm" in check.parts[1].detail
    assert "returned 2" in check.parts[1].detail
    assert check.output == "seen Oslo\nseen rhythm\nseen AEIOU\n"


def test_an_exception_is_told_with_its_line():
    first = questions(MBPP(), "mbpp.jsonl")[0]

    check = CodeTestsVerifier().check("def vowels(word):\n    return word[99]", first)

    assert (
        check.parts[0].detail == "IndexError: string index out of range (line 2: return word[99])"
    )


def test_a_program_that_does_not_start_fails_all_tests():
    first = questions(MBPP(), "mbpp.jsonl")[0]

    check = CodeTestsVerifier().check("def vowels(word:\n    return 2", first)

    assert [part.passed for part in check.parts] == [False] * 3
    assert check.parts[0].detail.startswith("SyntaxError")


@pytest.mark.parametrize("value", ["all", "share"])
def test_cases_stop_at_the_first_that_fails_unless_shares_count(value):
    first = questions(APPS(), "apps.jsonl")[0]
    reply = "n = int(input())\nprint(55 if n == 10 else 0)"

    check = CodeTestsVerifier(value=value).check(reply, first)

    assert not check.passed
    assert len(check.parts) == (1 if value == "all" else 3)
    assert check.value == (0 if value == "all" else pytest.approx(1 / 3))
    assert check.parts[0].detail == "line 1 is '0' instead of '10'"


def test_a_program_reads_its_input_in_any_way():
    (first,) = questions(APPS(), "apps.jsonl")[:1]
    for read in (
        "input()",
        "open(0).read()",
        "__import__('os').read(0, 9)",
        "__import__('sys').stdin.readline()",
    ):
        check = CodeTestsVerifier().check(f"n = int({read})\nprint(n * (n + 1) // 2)", first)
        assert check.passed, (read, check)


@pytest.mark.parametrize(
    ("end", "passes"),
    [
        ("import os; os._exit(0)", False),  # before it has printed
        ("import sys; sys.stdout.flush(); sys.exit()", True),
        ("print('x', file=__import__('sys').stderr)", True),
        ("raise ValueError", False),
        ("exit(3)", False),
        ("exit()", True),
    ],
)
def test_a_program_must_end_well(end, passes):
    first = questions(APPS(), "apps.jsonl")[0]

    check = CodeTestsVerifier().check(f"n = int(input())\nprint(n * (n + 1) // 2)\n{end}", first)

    assert check.passed is passes, check


def test_a_loop_of_fences_is_read_in_time():
    text = "```python\nx = 1\n" * 20_000

    start = time.process_time()
    assert program_in(text, {"f"}) == text.partition("\n")[2]
    assert program_in(text + "```", {"f"}) == "x = 1\n"
    assert time.process_time() - start < 5  # a second search from each fence would take minutes


def test_what_apps_imports_is_there():
    first = questions(APPS(), "apps.jsonl")[0]
    reply = "n: List[int] = [int(input())]\nprint(np.sum(np.arange(n[0] + 1)) + ceil(0.0))"

    assert CodeTestsVerifier().check(reply, first).passed


def test_threads_of_a_program_print_before_it_ends():
    first = questions(APPS(), "apps.jsonl")[0]
    reply = """
import sys, threading
def main():
    n = int(input())
    print(n * (n + 1) // 2)
threading.stack_size(1 << 27)
sys.setrecursionlimit(10**6)
threading.Thread(target=main).start()
"""

    assert CodeTestsVerifier().check(reply, first).passed


def test_packages_are_those_of_the_settings():
    first = questions(MBPP(), "mbpp.jsonl")[0]
    reply = f"import numpy as np\ndef vowels(word):\n    return np.int64({VOWELS})"

    assert CodeTestsVerifier().check(reply, first).passed
    without = CodeTestsVerifier(packages=()).check(reply, first)
    assert "No module named 'numpy'" in without.parts[0].detail
    with pytest.raises(UsageError, match="not_there"):
        CodeTestsVerifier(packages=("not_there",)).prepare()


def test_packages_may_be_installed_below_the_folder_for_temporary_files(tmp_path, monkeypatch):
    package = tmp_path / "mbt_vowels"
    package.mkdir()
    (package / "__init__.py").write_text("LETTERS = 'aeiou'\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = questions(MBPP(), "mbpp.jsonl")[0]
    vowels = "sum(letter in mbt_vowels.LETTERS for letter in word.lower())"
    reply = f"import mbt_vowels\ndef vowels(word):\n    return {vowels}"

    check = CodeTestsVerifier(packages=("mbt_vowels",)).check(reply, first)

    assert check.passed, check.parts


def test_a_reply_without_a_program_is_wrong_and_runs_nothing():
    first = questions(MBPP(), "mbpp.jsonl")[0]

    check = CodeTestsVerifier().check("  \n", first)

    assert not check.passed
    assert check.cpu_seconds == 0
    assert check.parts[0].detail == "the reply has no program"


def test_a_question_without_tests_gets_no_verdict_and_the_others_theirs_in_order():
    good = questions(MBPP(), "mbpp.jsonl")[0]
    none = questions(APPS(), "apps.jsonl")[-1]
    wrong = Question("broken", "", "", metadata={"input_output": '{"inputs": [1], "outputs": []}'})
    submissions = [Submission(good.answer, one) for one in (none, good, wrong, good, none)]

    checks = list(CodeTestsVerifier().check_all(submissions))

    kinds = [isinstance(check, VerificationError) for check in checks]
    assert kinds == [True, False, True, False, True]
    assert all(check.passed for check in checks if not isinstance(check, VerificationError))
    assert "`broken`" in checks[2].message
    with pytest.raises(VerificationError, match="there are none"):
        CodeTestsVerifier().check(good.answer, none)


def test_many_replies_are_checked_in_order_and_lazily():
    first = questions(MBPP(), "mbpp.jsonl")[0]
    taken = []

    def submissions():
        for number in range(400):
            taken.append(number)
            yield Submission(first.answer if number % 3 else "def vowels(w): 0", first)

    found = CodeTestsVerifier().check_all(submissions())
    start = [next(found).passed for _ in range(5)]

    assert start == [False, True, True, False, True]
    assert len(taken) < 400
    found.close()


def test_time_is_that_of_the_processor():
    first = questions(MBPP(), "mbpp.jsonl")[0]
    slow = f"import time\ndef vowels(word):\n    time.sleep(1.2)\n    return {VOWELS}"
    busy = "def vowels(w):\n    while True: pass"

    assert CodeTestsVerifier(timeout_seconds=1).check(slow, first).passed
    check = CodeTestsVerifier(timeout_seconds=0.5).check(busy, first)
    assert check.parts[0].detail == "the program reached the limit of processor time"
    assert check.parts[1].detail == "not run: the program has ended"
