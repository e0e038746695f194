"""Whether the answers to math questions are right, whatever form they are written in."""

import importlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from mbt_cli.errors import UsageError
from mbt_cli.verifiers.text import extract_answer, outside_thinking

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_LONGEST_BOX = 2_000  # characters; a model in a loop opens boxes that never close
_MARK = re.compile(r"####\s*(\$?-?[\d.,]+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_DRESS = re.compile(
    r"\\left|\\right|\\[,!;: ]|\\(?:mathrm|text|textbf|mbox)\b|\$|\\%|%|\^\s*\{?\s*\\circ\s*\}?|\s"
)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete box, braces matched; None without one.

    Example:
        >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{3}{4}}.")
        '\\frac{3}{4}'
    """
    for match in reversed(list(_BOX.finditer(text))):
        inside = _braced(text, match.end())
        if inside is not None:
            return inside.strip()
    return None


def math_answer(reply: str, *, tagged: str | None = None) -> str | None:
    r"""The final answer of a reply to a math question.

    The tagged answer where there is one (out of its box, if it is boxed there), else the last box
    outside the thinking.

    Args:
        reply: The whole reply.
        tagged: What was taken from its answer tags already; None: look for them here.

    Example:
        >>> math_answer(r"<answer>\boxed{72}</answer>"), math_answer(r"It is \boxed{7}")
        ('72', '7')
    """
    answer = extract_answer(reply) if tagged is None else tagged
    if answer.strip():
        return last_boxed(answer) or answer.strip()
    return last_boxed(outside_thinking(reply))


def gsm8k_number(text: str) -> str | None:
    """The last number in a text without commas, as GSM8K's own evaluation writes numbers.

    A whole number written as 72.00 counts as 72.

    Example:
        >>> gsm8k_number("about $1,200.00 in all"), gsm8k_number("none")
        ('1200', None)
    """
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    number = str(numbers[-1]).replace(",", "")
    return re.sub(r"\.0+$", "", number)


def gsm8k_answer(reply: str, *, tagged: str | None = None) -> str | None:
    """The number of a reply to a GSM8K question: of its tagged or boxed answer, else after ####.

    Args:
        reply: The whole reply.
        tagged: What was taken from its answer tags already; None: look for them here.

    Example:
        >>> gsm8k_answer("<answer>$1,080</answer>"), gsm8k_answer("9 x 2 #### 18")
        ('1080', '18')
    """
    answer = math_answer(reply, tagged=tagged)
    if answer is None:
        marked = _MARK.findall(outside_thinking(reply))
        answer = marked[-1] if marked else ""
    return gsm8k_number(answer)


def plain_latex(text: str) -> str:
    r"""LaTeX without what never changes its meaning: white space, dollar signs, sizes of brackets.

    Equal plain forms mean the same; unequal ones may still.

    Example:
        >>> plain_latex(r"$\left( 3, \dfrac{\pi}{2} \right)$")
        '(3,\\frac{\\pi}{2})'
    """
    return (
        _DRESS.sub("", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").rstrip(".")
    )


def _braced(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        return None
    depth = 0
    for end in range(start, min(len(text), start + _LONGEST_BOX)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[start + 1 : end]
    return None


def same_number(tagged: str, reply: str, gold: str) -> bool:
    """GSM8K's official match: the numbers are equal.

    Args:
        tagged: What stands in the reply's answer tags.
        reply: The whole reply.
        gold: The official solution or its number.

    Example:
        >>> same_number("72.00 dollars", "", "It is so. #### 72")
        True
    """
    answer = gsm8k_answer(reply, tagged=tagged)
    return answer is not None and answer == gsm8k_number(gold)


def same_form(tagged: str, reply: str, gold: str) -> bool:
    r"""Whether the answers are written alike, spaces and brackets' sizes apart.

    Two that mean the same may be written otherwise; that is a matter for math-verify.

    Example:
        >>> same_form(r"\left( 3 \right)", "", "(3)"), same_form("0.5", "", r"\frac{1}{2}")
        (True, False)
    """
    answer = math_answer(reply, tagged=tagged)
    return answer is not None and plain_latex(answer) == plain_latex(gold)


_SECONDS = 5  # for one comparison, in math-verify's own way
_KEYS = ("answer", "reply", "gold_answer", "gold_aliases")


def math_right(rollouts: pl.DataFrame, benchmark: str) -> pl.Series:
    """1 where the answer means the same as the gold answer or an alias, else 0; one a rollout.

    Equal rollouts are compared once.

    Args:
        rollouts: `answer`, `reply`, `gold_answer`, `gold_aliases`.
        benchmark: `gsm8k` goes by its official number match, any other by LaTeX and math-verify.

    Raises:
        UsageError: Two answers are written in different ways, and math-verify is not installed.
    """
    rows = rollouts.select(_KEYS).unique(maintain_order=True)
    same = same_number if benchmark == "gsm8k" else _same_math
    right = [is_right(row, same) for row in rows.iter_rows(named=True)]
    return rollouts.select(_KEYS).join(
        rows.with_columns(right=pl.Series(right, dtype=pl.Float64)),
        on=_KEYS,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["right"]


def is_right(row: Mapping[str, Any], same: Callable[[str, str, str], bool]) -> float:
    """1 where the answer of a row is the same as its gold answer or an alias, by one rule."""
    tagged, reply = row["answer"] or "", row["reply"] or ""
    golds = [row["gold_answer"] or "", *(row["gold_aliases"] or [])]
    return float(any(same(tagged, reply, gold) for gold in golds if gold))


def _same_math(tagged: str, reply: str, gold: str) -> bool:
    if same_form(tagged, reply, gold):
        return True
    answer = math_answer(reply, tagged=tagged)
    return answer is not None and _verified(answer, gold)


def _verified(answer: str, gold: str) -> bool:
    library = _math_verify()
    # its clock is a signal, which only the main thread may set
    limit = _SECONDS if threading.current_thread() is threading.main_thread() else None
    parsed = [library.parse(f"${text}$", parsing_timeout=limit) for text in (gold, answer)]
    return bool(library.verify(*parsed, timeout_seconds=limit))


def _math_verify() -> Any:
    try:
        library = importlib.import_module("math_verify")
    except ModuleNotFoundError:
        raise UsageError(
            "`math_match` needs math-verify to compare answers written in different ways",
            hint='run `pip install "mbt-cli[math]"`',
        ) from None
    # it logs every answer that it cannot parse, with a traceback
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return library
