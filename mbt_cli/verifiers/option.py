"""Answers to multiple choice: right if they name the right option."""

import re
from typing import ClassVar, Literal

from mbt_cli.core.verifier import Verifier
from mbt_cli.verifiers.math import final_answer

_LOOK = re.compile(r"\*\*|__|`|\$|\\(?:text|textbf|mathrm|mathbf)\s*(?=\{)|[{}]")
_LEAD = r"(?:(?:the\s+)?(?:(?:final|correct|right)\s+)?(?:answer|option|choice)(?:\s+is)?\s*:?\s*)"
_LETTER = re.compile(
    rf"{_LEAD}{{0,2}}(?:[(\[]\s*([A-Z])\s*[)\]][.:]?|([A-Z])\s*[.):](?=\s|$)|([A-Z])$)\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_ANOTHER = re.compile(
    r"^(?:or|and|,|;|/|&)(?:\W|$)|[(\[][A-Z][)\]]|(?<!\w)[A-Z][.)](?=\s|$)|(?:^|\b(?:or|and)\s)[A-Z]$"
)


class OptionVerifier(Verifier):
    r"""Right if the answer is the letter of the right option, or its exact text.

    The answer is the tagged one, otherwise the last `\boxed` one outside the thinking. `B`, `b`,
    `(B)`, `B.`, `B) text` and `Option B` name B; the letter decides, whatever text follows. An
    answer that names two options is wrong. Texts are compared without case, spaces around words
    and a full stop at the end.

    Example:
        >>> verifier = OptionVerifier()
        >>> verifier.same("(B) Oslo", "B"), verifier.same("B or C", "B")
        (True, False)
    """

    replaces_words: ClassVar[bool] = True

    kind: Literal["option"] = "option"
    """Names the verifier."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        return final_answer(reply, tagged=tagged)

    def same(self, given: str, wanted: str) -> bool:
        one, other = option_text(given), option_text(wanted)
        if one == other:
            return bool(one)
        letter = option_letter(given)
        return letter is not None and letter == option_letter(wanted)


def option_letter(answer: str) -> str | None:
    """The one option that an answer names by its letter; None for none or several.

    Example:
        >>> option_letter("**B**"), option_letter("b)"), option_letter("Option C: 5 m")
        ('B', 'B', 'C')
        >>> option_letter("A) x, or (B) y"), option_letter("A dog"), option_letter("BC")
        (None, None, None)
    """
    found = _LETTER.fullmatch(_LOOK.sub("", answer).strip())
    if found is None:
        return None
    *letters, rest = found.groups()
    return None if _ANOTHER.search(rest.strip()) else next(filter(None, letters)).upper()


def option_text(answer: str) -> str:
    """The text of an option as texts are compared.

    Example:
        >>> option_text(" New  York. ")
        'new york'
    """
    return " ".join(answer.casefold().split()).removesuffix(".").rstrip()
