"""Answers to math questions in LaTeX: right if they are mathematically equal."""

import re
from typing import Annotated, ClassVar, Literal

from mbt_cli.core.plugin import AbsentByDefault
from mbt_cli.core.traces import outside_thinking
from mbt_cli.core.verifier import Verifier
from mbt_cli.verifiers import algebra, latex, math_rules
from mbt_cli.verifiers.text import extract_answer

_LONGEST_ANSWER = 1_000  # characters that math-verify is given
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"[{}]")
_STATED = re.compile(r"[Tt]he answer is[:\s]*\$?([^$\n]+)")
_LONGEST_BOX = 1_999  # characters; a model in a loop opens boxes that never close


class MathVerifier(Verifier):
    r"""Right if the answer means the same as the gold answer.

    The answer is the tagged one, otherwise the last `\boxed` one outside the thinking. Two answers
    are the same as numbers, expressions, lists, sets, tuples, intervals, matrices, equations or
    words. By the conventions of MATH:

    - Lists and sets have no order; tuples and intervals do, and brackets of intervals count. A list
      without brackets is the same as the tuple in its order.
    - `x = 5` is 5, and `x \in [1, 2]` and `1 \le x \le 2` are [1, 2]. An equation that contradicts
      itself, such as 6 = 5, has no value.
    - `1 1/2` and `1\frac{1}{2}` are 3/2. `2 3` is not a number. 1,000 and `1\,000` are 1000.
    - Units may be missing; two units must agree. Per cent and degrees are units: 50\% is 50, and
      not 0.5.
    - A decimal number is the same as an exact value if they are equal, or if it has 6 significant
      digits or more and the value rounds to it.
    - Numbers in another base must have it: `52_8` is neither 52 nor 42.

    Values decide first: expressions that have different ones differ. Those left are equal if
    math-verify finds so within 0.8 seconds of CPU time, which needs the extra `math`. Answers of
    more than 1,000 characters must be written alike.

    `same` is symmetric: votes may be grouped by it. It holds in every thread and process, keeps the
    result of each pair that math-verify decides, and takes any text.
    """

    version: ClassVar[int] = 3

    kind: Literal["math"] = "math"
    """Names the verifier."""
    rule: Annotated[Literal["minerva", "hendrycks", "qwen"] | None, AbsentByDefault] = None
    r"""How a published evaluation of MATH decides. It reads all text outside the thinking, tags or
    not.

    `qwen`: the last `\boxed`, else what follows the first "The answer is", compared by meaning.
    `minerva`: exact match of lm-evaluation-harness' `minerva_math`: what "Final Answer: The final
    answer is ... I hope it is correct." states, equal as text after Minerva's rewriting, or as
    sympy reads it.
    `hendrycks`: exact match of its `hendrycks_math`: the text between the first and the last dollar
    sign, equal as text after Hendrycks' rewriting. It misleads: a reply that explains itself has
    several formulas, and base models that solve 43% of MATH score 18%.
    """

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        if self.rule is None:
            return final_answer(reply, tagged=tagged)
        text = outside_thinking(reply)
        if self.rule == "minerva":
            return math_rules.minerva_answer(text)
        if self.rule == "hendrycks":
            return math_rules.hendrycks_answer(text)
        return last_boxed(text) or _stated(text)

    def same(self, given: str, wanted: str) -> bool:
        if self.rule == "hendrycks":
            return math_rules.hendrycks_same(given, wanted)
        if self.rule == "minerva":
            return math_rules.minerva_same(given, wanted, algebra.equal_difference)
        one, other = latex.cleaned(given), latex.cleaned(wanted)
        if latex.plain(one) == latex.plain(other):
            return bool(one)
        if max(len(given), len(wanted)) > _LONGEST_ANSWER:
            return False
        return latex.same(latex.read(one), latex.read(other), algebra.equal)

    def prepare(self) -> None:
        if self.rule != "hendrycks":
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


def _stated(text: str) -> str | None:
    """What the first "The answer is" of a text states, to the end of the line; None without it.

    Example:
        >>> _stated("So the answer is: $5$."), _stated("The answer is 5 apples.")
        ('5', '5 apples')
    """
    found = _STATED.search(text)
    return None if found is None else found[1].strip().removesuffix(".").rstrip()


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
