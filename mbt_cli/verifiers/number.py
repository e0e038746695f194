"""Answers that are one number, as GSM8K's official evaluation compares them."""

import re
from typing import Literal

from mbt_cli.core.traces import outside_thinking
from mbt_cli.core.verifier import Verifier
from mbt_cli.verifiers.math import final_answer

_MARK = re.compile(r"####\s*(\$?-?[\d.,]+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


class NumberVerifier(Verifier):
    """Right if the last number of the answer equals the gold number.

    The answer is the tagged or boxed one, otherwise the number after `####`. Thousands separators
    and trailing zeros after the decimal point do not count.

    Example:
        >>> NumberVerifier().answer("<answer>$1,080</answer>")
        '1080'
        >>> NumberVerifier().answer("9 x 2 #### 18")
        '18'
        >>> NumberVerifier().same("72.00 dollars", "It is so. #### 72")
        True
    """

    kind: Literal["number"] = "number"
    """Names the verifier."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        answer = final_answer(reply, tagged=tagged)
        if answer is None:
            marked = _MARK.findall(outside_thinking(reply))
            answer = marked[-1] if marked else ""
        return last_number(answer)

    def same(self, given: str, wanted: str) -> bool:
        number = last_number(given)
        return number is not None and number == last_number(wanted)


def last_number(text: str) -> str | None:
    """The last number in a text, without thousands separators; None without one.

    A whole number written as 72.00 is 72.

    Example:
        >>> last_number("about $1,200.00 in all"), last_number("none")
        ('1200', None)
    """
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    return re.sub(r"\.0+$", "", str(numbers[-1]).replace(",", ""))
