"""Programs in replies: right if they pass the tests of their question, run in a sandbox."""

import builtins
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from mbt_cli.core.questions import Question
from mbt_cli.core.traces import outside_thinking
from mbt_cli.core.verifier import Check, Part, Submission, Verifier
from mbt_cli.errors import VerificationError
from mbt_cli.sandbox.pool import Examination, Limits, Outcome, pool

_BEGIN, _DONE = "[BEGIN]", "[DONE]"
_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*(?:\n|\Z)", re.MULTILINE
)
_OF_THE_TEXT = 4
_PYTHON = ("", "py", "py3", "python", "python3")
_CALLED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
_MEGABYTE = 1 << 20
_APPS_IMPORTS = """
import bisect, collections, datetime, fractions, functools, heapq, itertools, math, operator
import random, re, string, sys, time
from bisect import *
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from functools import cmp_to_key, lru_cache, reduce
from heapq import *
from itertools import accumulate, combinations, permutations, product
from math import ceil, cos, exp, fabs, floor, gcd, log, log2, sin, sqrt, tan
from typing import *
"""
"""What APPS's own script imports before a program, which programs therefore leave out."""
_NUMPY = "import numpy as np"


class CodeTestsVerifier(Verifier):
    """Right if the program in a reply passes all tests of its question.

    The tests are in the metadata of the question, in one of three layouts:

    - MBPP: `test_list`, assertions one a text, and `test_setup_code` or `test_imports`;
    - HumanEval: `test`, which defines `check`, `entry_point`, and `prompt`, the code that the reply
      continues or repeats;
    - APPS: `input_output`, JSON with `inputs`, `outputs` and perhaps `fn_name`. Without `fn_name`
      each case is a run of the whole program: its output is compared line by line and word by word,
      decimal numbers by 1e-5 of their size. With it, the function is called, or the method of a
      class `Solution`: tuples count as lists. Common modules are imported before the program.

    The program is the last complete fenced block that defines a name which the tests call; without
    one, the last complete block of Python; without a block, what stands before or behind a fence
    that has no partner, or the whole text. Text before `[BEGIN]` and from `[DONE]` on does not
    count. If the question has a `prompt` whose function the program does not define, the program
    continues the prompt.

    Program and tests run in two processes, between which plain data pass: no program can read or
    patch what compares, and only plain data equal an expected result. Processor time decides, not
    the clock. A sandbox that dies is a failure of the row, never a wrong answer.
    """

    reads_metadata: ClassVar[bool] = True
    runs_programs: ClassVar[bool] = True
    replaces_words: ClassVar[bool] = True

    version: ClassVar[int] = 2

    kind: Literal["code_tests"] = "code_tests"
    """Names the verifier."""
    timeout_seconds: float = Field(default=5, gt=0, le=600)
    """Processor time of a program: for all assertions of its question, or for each case."""
    memory_mb: int = Field(default=1024, ge=128, le=1 << 20)
    """Memory of a program, in MiB of address space."""
    packages: tuple[str, ...] = ("numpy",)
    """Packages beside the standard library that programs can import, each by its name."""
    value: Literal["all", "share"] = "all"
    """`all`: the value is 1 if every test passes, and no case is run after one that fails.
    `share`: it is the share of tests that pass. A reply passes only with all."""
    cut: tuple[str, ...] = ()
    """Texts at which a continuation of a prompt ends."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        return program_in(tagged or outside_thinking(reply)) or None

    def same(self, given: str, wanted: str) -> bool:
        return given.strip() == wanted.strip()

    def prepare(self) -> None:
        pool(self.packages)

    def check(self, reply: str, question: Question, *, tagged: str | None = None) -> Check:
        made = self._made(Submission(reply, question, tagged))
        if isinstance(made, VerificationError):
            raise made
        if isinstance(made, Check):
            return made
        return self._check(pool(self.packages).examine(made), _count(made))

    def check_all(self, submissions: Iterable[Submission]) -> Iterator[Check | VerificationError]:
        """Check replies, as many at a time as the sandbox has workers; in their order."""
        order: deque[Check | VerificationError | int] = deque()

        def examinations() -> Iterator[Examination]:
            for one in submissions:
                made = self._made(one)
                if isinstance(made, Examination):
                    order.append(_count(made))
                    yield made
                else:
                    order.append(made)

        for outcome in pool(self.packages).examine_all(examinations()):
            while not isinstance(first := order.popleft(), int):
                yield first
            if isinstance(outcome, Outcome):
                yield self._check(outcome, first)
            else:
                yield outcome
        for rest in order:
            assert not isinstance(rest, int)
            yield rest

    def _made(self, submission: Submission) -> Examination | Check | VerificationError:
        text = submission.tagged or outside_thinking(submission.reply)
        try:
            made = self._examination(text, submission.question.metadata)
        except (ValueError, TypeError, KeyError) as error:
            what = f"the tests of `{submission.question.question_id}` cannot be read: {error}"
            return VerificationError(what)
        if not made.source.strip():
            return Check(0.0, False, (Part("program", False, False, "the reply has no program"),))
        return made

    def _examination(self, text: str, metadata: Mapping[str, Any]) -> Examination:
        limits = Limits(self.timeout_seconds, self.memory_mb * _MEGABYTE)
        made = Examination("", stops=self.value == "all", limits=limits)
        if metadata.get("test_list"):
            tests = [str(test) for test in metadata["test_list"]]
            setup = [*(metadata.get("test_imports") or ()), metadata.get("test_setup_code") or ""]
            return replace(
                made,
                source=program_in(text, _called_in(tests)),
                tests=[(f"test {number}", test) for number, test in enumerate(tests, start=1)],
                setup=[str(one) for one in setup if one],
            )
        if metadata.get("test") and metadata.get("entry_point"):
            entry, prompt = str(metadata["entry_point"]), str(metadata.get("prompt") or "")
            source = program_in(text, {entry}, continues=bool(prompt))
            if not _defines(source, {entry}) and source.strip():
                source = prompt + _before_any(source, self.cut)
            test = f"{metadata['test']}\ncheck({entry})"
            return replace(
                made, source=source, tests=[("check", test)], helpers=[prompt], entries=[entry]
            )
        if metadata.get("input_output"):
            given = metadata["input_output"]
            cases = json.loads(given) if isinstance(given, str) else given
            inputs, outputs = cases["inputs"], cases["outputs"]
            if not inputs or len(inputs) != len(outputs):
                raise ValueError(f"{len(inputs)} inputs for {len(outputs)} outputs")
            function = cases.get("fn_name") or None
            pairs = list(zip(inputs, outputs, strict=True))
            if function is None:
                pairs = [(_lines(one), _lines(other)) for one, other in pairs]
            source = program_in(text, {"Solution", function} if function else ())
            helpers = [_APPS_IMPORTS, *([_NUMPY] if "np." in source else ())]
            return replace(made, source=source, cases=pairs, function=function, helpers=helpers)
        raise ValueError("there are none: `test_list`, `test` or `input_output` in its metadata")

    def _check(self, outcome: Outcome, count: int) -> Check:
        parts = tuple(Part(name, passed, passed, detail) for name, passed, detail in outcome.parts)
        right = sum(part.passed for part in parts)
        passed = right == count
        value = right / count if self.value == "share" else float(passed)
        return Check(value, passed, parts, output=outcome.output, cpu_seconds=outcome.cpu_seconds)


def program_in(text: str, names: Iterable[str] = (), *, continues: bool = False) -> str:
    r"""The program in a reply; empty if there is none.

    Args:
        text: The reply outside its thinking.
        names: Names of which the program defines at least one.
        continues: Whether a reply may begin in the middle of a program.

    Example:
        >>> program_in("So:\n```python\ndef f(): ...\n```\nUse it:\n```\nf()\n```", {"f"})
        'def f(): ...\n'
        >>> program_in("x = 1\n[DONE]\nYou are"), program_in("```python\nx = 2")
        ('x = 1\n', 'x = 2')
    """
    if _BEGIN in text:
        text = text.partition(_BEGIN)[2]
    text = text.partition(_DONE)[0]
    blocks = list(_blocks(text))
    defining = [code for _, code in blocks if _defines(code, names)]
    if defining:
        return defining[-1]
    fence = _FENCE.search(text)
    if fence is None:
        return text
    head = text[: fence.start()]
    if continues and head.strip() and head.lstrip("\n")[0] in " \t":
        return head
    if blocks:
        python = [code for language, code in blocks if language in _PYTHON]
        return (python or [code for _, code in blocks])[-1]
    rest = text[fence.end() :]
    is_closing = head.strip() and not fence[3] and not _defines(rest, names)
    return head if is_closing else _unindented(rest, fence)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and text of each complete fenced block; a fence with a language opens a new one.

    A block in a list loses the indentation of its fence. As in CommonMark, a fence that is indented
    by four more characters belongs to the text: to a docstring, for instance.
    """
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif len(fence["indent"]) >= len(opening["indent"]) + _OF_THE_TEXT:
            continue
        elif fence[3]:
            opening = fence
        elif fence[2].startswith(opening[2]):
            yield opening[3].lower(), _unindented(text[opening.end() : fence.start()], opening)
            opening = None


def _unindented(code: str, opening: re.Match[str]) -> str:
    """A block without the indentation of its fence, if all of its lines have that."""
    indent = opening["indent"]
    lines = code.splitlines(keepends=True)
    if not all(line.startswith(indent) or not line.strip() for line in lines):
        return code
    return "".join(line.removeprefix(indent) for line in lines)


def _defines(code: str, names: Iterable[str]) -> bool:
    """Whether a text defines one of some names at the beginning of a line."""
    either = "|".join(map(re.escape, sorted(names)))
    pattern = rf"^(?:(?:async[ \t]+)?def|class)[ \t]+(?:{either})\b|^(?:{either})[ \t]*="
    return bool(either) and re.search(pattern, code, re.MULTILINE) is not None


def _called_in(tests: Sequence[str]) -> set[str]:
    """Names that tests call; those of built-in functions only if there are no others."""
    called = {name for test in tests for name in _CALLED.findall(test)}
    return {name for name in called if not hasattr(builtins, name)} or called


def _before_any(text: str, ends: Iterable[str]) -> str:
    places = [place for end in ends if (place := text.find(end)) >= 0]
    return text[: min(places, default=len(text))]


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _count(examination: Examination) -> int:
    return len(examination.tests if examination.cases is None else examination.cases)
