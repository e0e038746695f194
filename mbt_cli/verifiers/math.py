"""Answers to math questions in LaTeX: right if they are mathematically equal."""

import re
from functools import lru_cache
from typing import ClassVar, Literal

from mbt_cli.core.traces import outside_thinking
from mbt_cli.core.verifier import Verifier
from mbt_cli.verifiers import algebra
from mbt_cli.verifiers.text import extract_answer

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
    finds them equal within 0.8 seconds of CPU time. An answer of more than 1,000 characters is
    compared as LaTeX only. The package is needed only if the LaTeX differs.

    `same` is symmetric: votes may be grouped by it. It holds in every thread and process, keeps the
    result of each pair, and takes any text.
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
        algebra.require()
        return algebra.equal(given, wanted)

    def prepare(self) -> None:
        algebra.require()


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
