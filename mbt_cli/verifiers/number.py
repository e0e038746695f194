"""Answers that are one number, as GSM8K's official evaluation compares them."""

import re
from fractions import Fraction
from typing import ClassVar, Literal

from mbt_cli.core.traces import outside_thinking
from mbt_cli.core.verifier import Verifier
from mbt_cli.verifiers.math import final_answer

_MARK = re.compile(r"####\s*(\$?-?[\d.,]+)")
_WHOLE = r"\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d+"
_NUMBER = re.compile(
    rf"(?<![\w)\]}}])-?(?:(?:{_WHOLE})\s+)?\d+\s*/\s*\d+(?![\d.])"
    rf"|(?:(?<![\w)\]}}])-)?(?:(?:{_WHOLE})(?:\.\d+)?|\.\d+)"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_LOOK = re.compile(r"(?<=\d)(?:\{,\}|,?\\[!,]\s?)(?=\d{3})")
_LONGEST = 1_000  # digits


class NumberVerifier(Verifier):
    """Right if the last number of the answer equals the gold number.

    The answer is the tagged or boxed one, otherwise the number after `####`. Thousands separators,
    and zeros before and after the digits, do not count; 1/2, 1 1/2 and LaTeX fractions are numbers.

    Example:
        >>> NumberVerifier().answer("<answer>$1,080</answer>")
        '1080'
        >>> NumberVerifier().answer("9 x 2 #### 18")
        '18'
        >>> NumberVerifier().same("72.00 dollars", "It is so. #### 72")
        True
    """

    version: ClassVar[int] = 2

    kind: Literal["number"] = "number"
    """Names the verifier."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        answer = final_answer(reply, tagged=tagged)
        if answer is None:
            marked = _MARK.findall(outside_thinking(reply))
            answer = marked[-1] if marked else ""
        return last_number(answer)

    def same(self, given: str, wanted: str) -> bool:
        number = _value(given)
        return number is not None and number == _value(wanted)


def last_number(text: str) -> str | None:
    """The last number in a text, without thousands separators; None without one.

    A whole number written as 72.00 is 72.

    Example:
        >>> last_number("about $1,200.00 in all"), last_number("from 3-5"), last_number("none")
        ('1200', '5', None)
    """
    text = text.replace("\N{MINUS SIGN}", "-")
    text = _LOOK.sub(",", _FRACTION.sub(r" \1/\2", text))
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    return re.sub(r"\.0+$", "", str(numbers[-1]).replace(",", ""))


def _value(text: str) -> Fraction | str | None:
    """The last number of a text; as text if it has too many digits."""
    number = last_number(text)
    if number is None or len(number) > _LONGEST:
        return number
    whole, _, part = number.rpartition(" ")
    try:
        value = Fraction(re.sub(r"\s", "", part))
    except (ZeroDivisionError, ValueError):
        return None
    if not whole:
        return value
    sign = -1 if whole.startswith("-") else 1
    return Fraction(whole) + sign * value
