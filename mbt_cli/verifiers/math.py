"""Answers to math questions in LaTeX: right if they are mathematically equal."""

import importlib
import logging
import re
import threading
from functools import lru_cache
from typing import Any, Literal

from mbt_cli.core.verifier import Verifier
from mbt_cli.errors import UsageError
from mbt_cli.verifiers.text import extract_answer, outside_thinking

_SECONDS = 5  # limit of one comparison, kept by math-verify itself
_ANSWERS_KEPT = 4096
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_LONGEST_BOX = 2_000  # characters; a model in a loop opens boxes that never close
_NEUTRAL = re.compile(
    r"\\left|\\right|\\[,!;: ]|\\(?:mathrm|text|textbf|mbox)\b|\$|\\%|%|\^\s*\{?\s*\\circ\s*\}?|\s"
)


class MathVerifier(Verifier):
    r"""Right if the answer means the same as the gold answer.

    The answer is the tagged one, otherwise the last `\boxed` one outside the thinking. Two answers
    are the same if their LaTeX is equal but for spaces and sizes of brackets, or if math-verify
    finds them equal. The package is needed only if the LaTeX differs.
    """

    kind: Literal["math"] = "math"
    """Names the verifier."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        return final_answer(reply, tagged=tagged)

    def same(self, given: str, wanted: str) -> bool:
        if plain_latex(given) == plain_latex(wanted):
            return True
        # math-verify keeps time by a signal, which only the main thread can set
        limit = _SECONDS if threading.current_thread() is threading.main_thread() else None
        parsed = [_parsed(text, limit) for text in (wanted, given)]
        return bool(_math_verify().verify(*parsed, timeout_seconds=limit))

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
    for match in reversed(list(_BOX.finditer(text))):
        inside = _braced(text, match.end())
        if inside is not None:
            return inside.strip()
    return None


def _braced(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        return None
    depth = 0
    for end in range(start, min(len(text), start + _LONGEST_BOX)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[start + 1 : end]
    return None


@lru_cache(maxsize=_ANSWERS_KEPT)
def plain_latex(text: str) -> str:
    r"""LaTeX without what never changes its meaning: spaces, dollar signs, sizes of brackets.

    Equal plain forms mean the same; different ones may still.

    Example:
        >>> plain_latex(r"$\left( 3, \dfrac{\pi}{2} \right)$")
        '(3,\\frac{\\pi}{2})'
    """
    plain = _NEUTRAL.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    return plain.rstrip(".")


@lru_cache(maxsize=_ANSWERS_KEPT)
def _parsed(text: str, limit: int | None) -> Any:
    return _math_verify().parse(f"${text}$", parsing_timeout=limit)


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
