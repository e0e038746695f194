"""Answers to math questions in LaTeX: right if they are mathematically equal."""

import importlib
import json
import logging
import re
import subprocess
import sys
import threading
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal

from mbt_cli.core.verifier import Verifier
from mbt_cli.errors import UsageError
from mbt_cli.verifiers.text import extract_answer, outside_thinking

_SECONDS = 5  # limit of parsing an answer and of comparing two
_HELPER_LOCK = threading.Lock()
_LONGEST_ANSWER = 1_000  # characters that math-verify is given
_ANSWERS_KEPT = 4096
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"[{}]")
_LONGEST_BOX = 1_999  # characters; a model in a loop opens boxes that never close
_NEUTRAL = re.compile(
    r"\\left|\\right|\\[,!;: ]|\\(?:mathrm|text|textbf|mbox)\b|\$|\\%|%|\s"
    r"|\^\s*+(?:\{\s*+)?\\circ\s*+\}?"
)


class MathVerifier(Verifier):
    r"""Right if the answer means the same as the gold answer.

    The answer is the tagged one, otherwise the last `\boxed` one outside the thinking. Two answers
    are the same if their LaTeX is equal but for spaces and sizes of brackets, or if math-verify
    finds them equal within 5 seconds. An answer of more than 1,000 characters is compared as LaTeX
    only. The package is needed only if the LaTeX differs.
    """

    version: ClassVar[int] = 2

    kind: Literal["math"] = "math"
    """Names the verifier."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        return final_answer(reply, tagged=tagged)

    def same(self, given: str, wanted: str) -> bool:
        if max(len(given), len(wanted)) > _LONGEST_ANSWER:
            return _plain_latex(given) == _plain_latex(wanted)
        if plain_latex(given) == plain_latex(wanted):
            return True
        if threading.current_thread() is threading.main_thread():
            return _equal(given, wanted)
        return _equal_aside(given, wanted)

    def prepare(self) -> None:
        _math_verify()


def final_answer(reply: str, *, tagged: str | None = None) -> str | None:
    r"""The final answer of a reply to a math question; None without one.

    The tagged answer, out of its box if it has one; otherwise the last box outside the thinking.

    Args:
        reply: The whole reply, thinking included.
        tagged: Text of its answer tags if it is known; None: extract it.

    Example:
        >>> final_answer(r"<answer>\boxed{72}</answer>"), final_answer(r"It is \boxed{7}")
        ('72', '7')
    """
    answer = extract_answer(reply) if tagged is None else tagged
    if answer.strip():
        return last_boxed(answer) or answer.strip()
    return last_boxed(outside_thinking(reply))


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete box, with braces matched; None without one.

    Example:
        >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{3}{4}}.")
        '\\frac{3}{4}'
    """
    stop = len(text)
    for match in reversed(list(_BOX.finditer(text))):
        start, depth = match.end(), 1
        for brace in _BRACE.finditer(text, start, min(stop, start + _LONGEST_BOX)):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                return text[start : brace.start()].strip()
        stop = match.start()  # a box around one that stays open stays open too
    return None


def _plain_latex(text: str) -> str:
    r"""LaTeX without what never changes its meaning: spaces, dollar signs, sizes of brackets.

    Equal plain forms mean the same; different ones may still.

    Example:
        >>> plain_latex(r"$\left( 3, \dfrac{\pi}{2} \right)$")
        '(3,\\frac{\\pi}{2})'
    """
    plain = _NEUTRAL.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return plain.rstrip(".")


plain_latex = lru_cache(maxsize=_ANSWERS_KEPT)(_plain_latex)


def _equal(given: str, wanted: str) -> bool:
    """Whether math-verify finds two answers equal; its time limit is a signal."""
    return bool(_math_verify().verify(_parsed(wanted), _parsed(given), timeout_seconds=_SECONDS))


def _equal_aside(given: str, wanted: str) -> bool:
    """`_equal` in the main thread of another process: only main threads get signals."""
    _math_verify()
    with _HELPER_LOCK:
        helper = _helper()
        assert helper.stdin is not None
        assert helper.stdout is not None
        print(json.dumps([given, wanted]), file=helper.stdin, flush=True)
        found = helper.stdout.readline()
        if not found:  # it was killed: the comparison took too much memory
            _helper.cache_clear()
        return found == "True\n"


@cache
def _helper() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mbt_cli.verifiers.math"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@lru_cache(maxsize=_ANSWERS_KEPT)
def _parsed(text: str) -> Any:
    return _math_verify().parse(f"${text}$", parsing_timeout=_SECONDS)


def _math_verify() -> Any:
    try:
        library = importlib.import_module("math_verify")
    except ModuleNotFoundError:
        raise UsageError(
            "math-verify is needed to compare answers that are written in different ways",
            hint='run `pip install "mbt-cli[math]"`',
        ) from None
    # it logs a traceback for every answer that it cannot parse
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return library


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{_equal(*json.loads(line))}\n")
        sys.stdout.flush()
