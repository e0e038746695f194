"""What every set of checkers shares: the arguments of an instruction, and what a checker finds."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mbt_cli.core.chat import Json
from mbt_cli.errors import VerificationError
from mbt_cli.verifiers.instructions.text import Text

_SHOWN = 60  # characters of a value in a detail
_TOO_LARGE = 1 << 31  # no reply has as many characters


class Outcome(NamedTuple):
    """Whether a text follows an instruction, and what was wanted and found."""

    followed: bool
    detail: str


class Arguments:
    """The arguments of one instruction, as its record gives them.

    Args:
        values: Name to value; one that is null counts as missing.
    """

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = values

    def number(self, name: str) -> int:
        """A whole number."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:
            raise VerificationError(f"`{name}` is {_shown(value)}, not a whole number")
        if abs(value) >= _TOO_LARGE:
            raise VerificationError(f"`{name}` is {_shown(value)}, which is too large")
        return int(value)

    def text(self, name: str) -> str:
        """A text; of a list, its first one."""
        value = self._value(name)
        if isinstance(value, list | tuple) and value:
            value = value[0]
        if not isinstance(value, str):
            raise VerificationError(f"`{name}` is {_shown(value)}, not a text")
        if not value.strip():
            raise VerificationError(f"`{name}` is an empty text")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        value = self._value(name)
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise VerificationError(f"`{name}` is {_shown(value)}, not a list of texts")
        if not any(map(str.strip, value)):
            raise VerificationError(f"`{name}` has no text")
        return list(value)

    def _value(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            raise VerificationError(f"the record gives no `{name}`")
        return value


Checker = Callable[[Text, Arguments], Outcome]
"""Checks one instruction. Texts without anything but white space never reach it."""


def outcome(followed: bool, wanted: str, found: object) -> Outcome:
    """The outcome with its detail in words."""
    return Outcome(followed, f"wanted {wanted}, found {found}")


def compared(count: int, relation: str, wanted: int, what: str) -> Outcome:
    """Whether a count is `less than` or `at least` a number.

    Raises:
        VerificationError: The relation is another one.

    Example:
        >>> compared(120, "at least", 300, "words")
        Outcome(followed=False, detail='wanted at least 300 words, found 120')
    """
    if relation not in ("less than", "at least"):
        raise VerificationError(f"the relation is {_shown(relation)}: `less than` or `at least`")
    followed = count < wanted if relation == "less than" else count >= wanted
    return outcome(followed, f"{relation} {wanted} {what}", count)


def counted(
    count: Callable[[Text], int], what: str, number: str, relation: str | None = None
) -> Checker:
    """A checker of how often something occurs.

    Args:
        count: How often it occurs in a text.
        what: What it is, in the plural.
        number: The argument with the wanted number.
        relation: The argument that says `less than` or `at least`; None: `at least`.
    """

    def check(text: Text, arguments: Arguments) -> Outcome:
        wanted = arguments.number(number)
        how = "at least" if relation is None else arguments.text(relation)
        return compared(count(text), how, wanted, what)

    return check


def without(mark: str, what: str) -> Checker:
    """A checker that a mark does not occur."""

    def check(text: Text, arguments: Arguments) -> Outcome:
        return outcome(mark not in text.whole, f"no {what}", text.whole.count(mark))

    return check


def quoted(text: str) -> str:
    """A text in a detail, shortened.

    Example:
        >>> quoted("a" * 80) == "`" + "a" * 60 + "...`"
        True
    """
    text = re.sub(r"\s+", " ", text[: 4 * _SHOWN])
    return f"`{text[:_SHOWN]}...`" if len(text) > _SHOWN else f"`{text}`"


def _shown(value: object) -> str:
    return quoted(str(value))
