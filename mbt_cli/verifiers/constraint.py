"""One constraint on a reply, as AllenAI's RLVR mixes for Tülu 3 name it (arXiv 2411.15124).

The constraints are those of IFEval in other forms: a word occurs exactly N times, lengths are at
least, at most or around N, and paragraphs are divided by `* * *`. The names and arguments are those
of the data; what they mean follows `if_functions.py` of allenai/open-instruct.
"""

import json
import re
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, ClassVar, Literal

from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import Check, Part, Verifier
from mbt_cli.errors import VerificationError
from mbt_cli.verifiers.instructions import packages
from mbt_cli.verifiers.instructions.checkers import Arguments
from mbt_cli.verifiers.instructions.ifeval import placeholders
from mbt_cli.verifiers.instructions.text import Text, without_thinking

CONSTRAINT = "constraint"
"""The metadata with the constraint of a question: its `func_name` and its arguments."""
_NAME = "func_name"
_TAGS = re.compile(r"</?answer>")
_SENTENCE_END = re.compile(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=[.?!])\s")
_WORD = re.compile(r"\b\w+\b")
_CAPITALS = re.compile(r"\b[A-Z]+\b")


class ConstraintVerifier(Verifier):
    r"""Right if the reply follows the constraint in the question's metadata.

    Thinking, answer tags and white space around the reply are left out first. A reply with nothing
    else follows no constraint, not even one that forbids something.

    No verdict, and so a failed row: an unknown constraint, and an argument that is missing, empty
    or of another type.

    Example:
        >>> question = Question("q", "", "", metadata={
        ...     "constraint": {"func_name": "verify_bullet_points", "N": 2}})
        >>> ConstraintVerifier().check("* one\n* two", question).passed
        True
    """

    version: ClassVar[int] = 2
    reads_metadata: ClassVar[bool] = True
    replaces_words: ClassVar[bool] = True

    kind: Literal["constraint"] = "constraint"
    """Names the verifier."""

    def answer(self, reply: str, *, tagged: str | None = None) -> str | None:
        return _TAGS.sub("", without_thinking(reply)).strip() or None

    def same(self, given: str, wanted: str) -> bool:
        return given == wanted

    def prepare(self) -> None:
        packages.require(("langdetect",), ())

    def check(self, reply: str, question: Question, *, tagged: str | None = None) -> Check:
        """Check one reply; its only part is the constraint.

        Raises:
            VerificationError: The question has no constraint, one that is not known, or one with a
                wrong argument.
        """
        try:
            name, arguments = constraint_of(question.metadata.get(CONSTRAINT))
        except ValueError as error:
            raise VerificationError(f"the constraint of the question {error}") from error
        try:
            own = {key: _typed(name, key, Arguments(arguments)) for key in arguments}
        except VerificationError as error:
            raise VerificationError(f"{name}: {error.message}") from error
        text = self.answer(reply)
        passed = text is not None and _RULES[name](text, **own)
        detail = "the reply is empty" if text is None else ""
        return Check(float(passed), passed, (Part(name, passed, passed, detail),))


def constraint_of(value: Json) -> tuple[str, Mapping[str, Json]]:
    """The name and the arguments of a constraint; those that are null are left out.

    Raises:
        ValueError: It is not an object with a known name and the arguments of that name.

    Example:
        >>> constraint_of({"func_name": "validate_placeholders", "N": 3, "word": None})
        ('validate_placeholders', {'N': 3})
    """
    if not isinstance(value, Mapping):
        raise ValueError("is not an object")
    name = str(value.get(_NAME))
    if name not in _RULES:
        raise ValueError(f"has the unknown `{_NAME}` `{name}`")
    arguments = {k: v for k, v in value.items() if v is not None and k != _NAME}
    _, *wanted = signature(_RULES[name]).parameters
    if missing := [key for key in wanted if key not in arguments]:
        raise ValueError(f"has no `{missing[0]}`, which `{name}` needs")
    return name, {key: arguments[key] for key in wanted}


def _typed(rule: str, name: str, arguments: Arguments) -> int | str | list[str]:
    """An argument as its rule takes it."""
    read: Mapping[Any, Callable[[str], int | str | list[str]]] = {
        int: arguments.number,
        str: arguments.text,
        list[str]: arguments.texts,
    }
    return read[signature(_RULES[rule]).parameters[name].annotation](name)


def _amount(count: int, wanted: int, quantifier: str, tolerance: int) -> bool:
    match quantifier:
        case "at least":
            return count >= wanted
        case "at most":
            return count <= wanted
        case "around":
            return abs(count - wanted) <= tolerance
    return False


def _tenth(number: int) -> int:
    return max(round(number * 0.1), 1)


def _keywords(text: str, keyword_list: list[str]) -> bool:
    return all(word.lower() in text.lower() for word in keyword_list)


def _forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    return not any(word.lower() in text.lower() for word in forbidden_words)


def _keyword_frequency(text: str, word: str, N: int) -> bool:
    return _WORD.findall(text.lower()).count(word.lower()) == N


def _letter_frequency(text: str, letter: str, N: int) -> bool:
    return len(letter) == 1 and text.count(letter) == N


def _language(text: str, language: str) -> bool:
    return Text(text).language == language


def _paragraph_count(text: str, N: int) -> bool:
    parts = "\n".join(line.strip() for line in text.splitlines()).split("* * *")
    return len(parts) == N and all(part.strip() for part in parts)


def _word_count(text: str, N: int, quantifier: str) -> bool:
    return _amount(len(text.split()), N, quantifier, _tenth(N))


def _sentence_count(text: str, N: int, quantifier: str) -> bool:
    return _amount(len(_SENTENCE_END.split(text)), N, quantifier, 1)


def _paragraph_start(text: str, N: int, first_word: str, i: int) -> bool:
    parts = text.split("\n\n")
    return len(parts) == N and 1 <= i <= N and parts[i - 1].strip().startswith(first_word)


def _postscript(text: str, postscript_marker: str) -> bool:
    _, marker, rest = text.partition(postscript_marker)
    return bool(marker and rest.rstrip())


def _placeholders(text: str, N: int) -> bool:
    return placeholders(Text(text)) >= N


def _bullet_points(text: str, N: int) -> bool:
    return sum(line.strip().startswith(("*", "-")) for line in text.split("\n")) == N


def _title(text: str) -> bool:
    return any(">>" in line.partition("<<")[2] for line in text.split("\n"))


def _choice(text: str, options: list[str]) -> bool:
    return any(option in text for option in options)


def _highlighted_sections(text: str, N: int) -> bool:
    return len(re.findall(r"\*.*?\*", text)) >= N


def _sections(text: str, N: int, section_splitter: str) -> bool:
    heading = rf"{re.escape(section_splitter)}\s?\d"
    return len(re.findall(heading, text, re.IGNORECASE)) >= N


def _json_format(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _repeat_prompt(text: str, original_prompt: str) -> bool:
    return text.startswith(original_prompt)


def _two_responses(text: str) -> bool:
    first, *others = text.split("******")
    return len(others) == 1 and first.strip() != others[0].strip()


def _uppercase(text: str) -> bool:
    return text == text.upper()


def _lowercase(text: str) -> bool:
    return text == text.lower()


def _capital_words(text: str, N: int, quantifier: str) -> bool:
    return _amount(len(_CAPITALS.findall(text)), N, quantifier, _tenth(N))


def _end(text: str, end_phrase: str) -> bool:
    return text.endswith(end_phrase)


def _quotation(text: str) -> bool:
    return text.startswith('"') and text.endswith('"')


def _no_commas(text: str) -> bool:
    return "," not in text


_RULES: Mapping[str, Callable[..., bool]] = {
    "validate_choice": _choice,
    "validate_end": _end,
    "validate_forbidden_words": _forbidden_words,
    "validate_frequency_capital_words": _capital_words,
    "validate_highlighted_sections": _highlighted_sections,
    "validate_json_format": _json_format,
    "validate_lowercase": _lowercase,
    "validate_no_commas": _no_commas,
    "validate_paragraphs": _paragraph_start,
    "validate_placeholders": _placeholders,
    "validate_quotation": _quotation,
    "validate_repeat_prompt": _repeat_prompt,
    "validate_response_language": _language,
    "validate_sections": _sections,
    "validate_title": _title,
    "validate_two_responses": _two_responses,
    "validate_uppercase": _uppercase,
    "validate_word_constraint": _word_count,
    "verify_bullet_points": _bullet_points,
    "verify_keyword_frequency": _keyword_frequency,
    "verify_keywords": _keywords,
    "verify_letter_frequency": _letter_frequency,
    "verify_paragraph_count": _paragraph_count,
    "verify_postscript": _postscript,
    "verify_sentence_constraint": _sentence_count,
}
