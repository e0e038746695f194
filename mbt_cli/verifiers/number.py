"""Answers that are one number: by value, or by a rule of lm-evaluation-harness for GSM8K."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from mbt_cli.core.plugin import AbsentByDefault
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


@dataclass(frozen=True, slots=True)
class _Extraction:
    """Where a rule finds the number in a text: its first match, or its last one."""

    pattern: re.Pattern[str]
    is_last: bool = False

    def of(self, text: str) -> str | None:
        """The number as written; None without a match."""
        matches = list(self.pattern.finditer(text)) if self.is_last else []
        found = matches[-1] if matches else None if self.is_last else self.pattern.search(text)
        return None if found is None else next(filter(None, found.groups())).strip()


_SIGNS = r"[0-9.,]"
_RULES: Mapping[str, _Extraction] = {
    "strict": _Extraction(re.compile(rf"#### (-?{_SIGNS}+)")),
    "flexible": _Extraction(re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)"), is_last=True),
    # one more character must follow: without a full stop the last digit is lost, as in lm-eval
    "sentence": _Extraction(re.compile(rf"The answer is (-?{_SIGNS}+).")),
}
_NOT_COMPARED = re.compile(r"[,$]")


class NumberVerifier(Verifier):
    """Right if the last number of the answer equals the gold number.

    The answer is the tagged or boxed one, otherwise the number after `####`. Thousands separators,
    and zeros before and after the digits, do not count; 1/2, 1 1/2 and LaTeX fractions are numbers.

    With a `rule`, what counts as the answer and as equal is that of lm-evaluation-harness 0.4.13
    for GSM8K. It reads all text outside the thinking, tags or not, and compares characters:
    commas, dollar signs and one full stop at the end do not count, and 18.0 is not 18.

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
    rule: Annotated[Literal["strict", "flexible", "sentence"] | None, AbsentByDefault] = None
    """`strict`: the first number after `#### `, the metric strict-match of gsm8k. `sentence`: the
    first after "The answer is ", up to a full stop, strict-match of gsm8k_cot. `flexible`: the last
    number, flexible-extract of both. Default: by value."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        if self.rule is not None:
            return _RULES[self.rule].of(outside_thinking(reply))
        answer = final_answer(reply, tagged=tagged)
        if answer is None:
            marked = _MARK.findall(outside_thinking(reply))
            answer = marked[-1] if marked else ""
        return last_number(answer)

    def same(self, given: str, wanted: str) -> bool:
        if self.rule is not None:
            return _characters(given) == _characters(wanted)
        number = _value(given)
        return number is not None and number == _value(wanted)


def _characters(number: str) -> str:
    """What a rule compares of a number.

    Example:
        >>> _characters("$1,080."), _characters("18.0"), _characters("5..")
        ('1080', '18.0', '5.')
    """
    return _NOT_COMPARED.sub("", number).removesuffix(".")


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
