"""Conclusions: whether the last statement of a text gives the gold answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mbt_cli.core.verifier import Verifier
from mbt_cli.gates.words import Sentences, Words, folded
from mbt_cli.verifiers.math import last_boxed
from mbt_cli.verifiers.number import NumberVerifier
from mbt_cli.verifiers.text import TextVerifier, normalise

_TAIL_CHARACTERS = 2_000
_LAST_SENTENCES = 6
_SILENT_SENTENCES = 3
_SHOWN_CHARACTERS = 80
_CLOSED = ("yes", "no")
_NEGATION_WORDS = 6
_NEGATIONS = frozenset(
    {"not", "nor", "never", "neither", "without", "unlike", "cannot", "isnt", "wasnt", "arent"}
    | {"werent", "doesnt", "didnt", "cant", "couldnt", "wont", "wouldnt"}
)
_PAIRED_NEGATIONS = frozenset(
    {("rather", "than"), ("instead", "of"), ("no", "longer"), ("opposed", "to")}
)
_BE = (
    r"(?:is|was|are|were|be|remains?|stays?|becomes?|must be|has to be|should be|would be|will be"
    r"|can"
    r" only be|turns out to be|comes out (?:as|to)|reads)"
)
_SO = (
    r"(?:therefore|thus|then|indeed|clearly|simply|again|hence|also|still|just|finally|now|indeed"
    r"|so"
    r"|definitely|certainly|really)"
)
_STATED = re.compile(
    rf"\banswers?\b(?:,? (?:to|for|of|that|which|we)\b[^.;:!?\n]{{0,100}}?)?,? (?:{_SO},? )*{_BE}\b"
    rf"(?:,? {_SO}\b)*,?:?|\b(?:answer|result|total)\s*[:=]|\b(?:we|i) (?:can |will )?(?:{_SO} )*"
    r"(?:answer|conclude|settle (?:on|for)|arrive at|end (?:up )?(?:with|at)|decide (?:on|for)"
    r"|go with|state|choose)\b(?: with| that)?:?",
    re.IGNORECASE,
)
_STATED_BEFORE = re.compile(
    r"\b(?:is|was|must be|are)\b(?:,? therefore| thus| then| indeed)? (?:the|our) (?:final |correct"
    r" |right )?answer\b",
    re.IGNORECASE,
)
_HYPOTHETICAL = re.compile(
    r"\b(?:if|would|could|might|unless|whether|suppose|had we|wrong|tempt\w*|mistak\w*|at first"
    r"|seem\w*|not|never|either|perhaps|maybe|before|once)\b|n't\b",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"\b(?:so|thus|therefore|hence|then|conclude|means|follows|remains|settles|must be|altogether"
    r"|in (?:all|total|the end)|looking for|looked for|asked for|wanted|we want|the one|only"
    r"|it (?:is"
    r"|was)|points? to|everything)\b",
    re.IGNORECASE,
)
_NAMES_SOMETHING = re.compile(
    r"\b(?:is|was|are|were|be|:)(?: (?:the|an?|called|named|just|by|in|on))*:? +[\"'$]?(?:[A-Z]\w"
    r"|\d)"
)
_UNDECIDED = re.compile(
    r"\b(?:cannot|can't|could not|couldn't|unable to|impossible to|not possible to)\b[^.!?\n]{0,20}"
    r"\b(?:determine|decide|tell|answer|say|know|be (?:determined|answered|decided))\b"
    r"|\bleaves? (?:it|this|the \w+) open\b|\b(?:insufficient|not enough) (?:information"
    r"|evidence)\b",
    re.IGNORECASE,
)
_INLINE_MATH = re.compile(r"\$([^$\n]{1,400})\$")
_LETTERS = re.compile(r"[^\W\d_]")
_MATH = re.compile(r"[\\^{}/()\[\]]")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?!\w*[A-Za-z]\w*\d)|-?\.\d+")
_NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve"),
)
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE)
_TAIL_DENIED = re.compile(r",? (?:and |but )?\b(?:not|rather than|instead of)\b[^,;:=]*$")
_YEAR_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Gold:
    """The gold answer and its aliases, with the rule that compares answers.

    Args:
        answers: Those that have words.
        verifier: The benchmark's own.
    """

    answers: Sequence[str]
    verifier: Verifier

    def is_in(self, statement: str, *, is_stated: bool = True) -> bool:
        """Whether a statement gives the answer, and does not deny it.

        Args:
            statement: What stands after `the answer is`, or a whole sentence.
            is_stated: Whether it is the former, in which a number may come first or last.
        """
        words = Words.of(statement)
        numbers = [answer for answer in self.answers if not _LETTERS.search(answer)]
        if numbers and any(same_number(statement, n, is_stated=is_stated) for n in numbers):
            return True
        names = [answer for answer in self.answers if answer not in numbers or _MATH.search(answer)]
        if any(self._is_affirmed(words, name) for name in names):
            return True
        if isinstance(self.verifier, TextVerifier | NumberVerifier):
            return False
        pieces = dict.fromkeys(_pieces(statement))
        return any(self.verifier.same(piece, name) for piece in pieces for name in self.answers)

    @property
    def is_closed(self) -> bool:
        """Whether the answer is yes or no."""
        return any(normalise(answer) in _CLOSED for answer in self.answers)

    @property
    def is_number(self) -> bool:
        """Whether the answer is written in digits."""
        return not any(_LETTERS.search(answer) for answer in self.answers)

    def _is_affirmed(self, words: Words, answer: str) -> bool:
        if normalise(answer) in _CLOSED:
            given = [word for word in words.words[:_NEGATION_WORDS] if word in _CLOSED]
            return given[:1] == [normalise(answer)]
        return any(not _is_negated(words, start) for start, _ in words.places(answer))


def same_number(statement: str, wanted: str, *, is_stated: bool) -> bool:
    """Whether a statement comes out at a number: the one after its last `=`, else its last one.

    A stated answer may begin with the number. A year counts wherever it is the only one.

    Example:
        >>> same_number("So she makes 60 * 2 = $120 in 2 weeks", "120", is_stated=False)
        True
        >>> same_number("There are 15 - 12 = 3 left", "12", is_stated=False)
        False
        >>> same_number("It took three days", "3", is_stated=False)
        True
    """
    kept = _TAIL_DENIED.sub("", statement)
    kept = _NUMBER_WORD.sub(lambda word: str(_NUMBER_WORDS.index(word[0].lower())), kept)
    _, equals, result = kept.rpartition("=")
    numbers = [_plain_number(n) for n in _NUMBER.findall(result if equals else kept)]
    if not numbers:
        return False
    places = [0, -1] if is_stated or equals else [-1]
    if equals and not is_stated:
        places = [0]
    target = _plain_number(wanted)
    years = [number for number in numbers if len(number) == _YEAR_DIGITS]
    return any(numbers[place] == target for place in places) or years == [target]


def _plain_number(text: str) -> str:
    digits = text.replace(",", "").strip(" $%")
    return re.sub(r"\.0+$", "", digits)


def _pieces(statement: str) -> list[str]:
    """Parts of a statement that may be an answer in LaTeX, the likeliest first."""
    kept = _TAIL_DENIED.sub("", statement).strip(" .!:")
    found = [last_boxed(kept) or "", *_INLINE_MATH.findall(kept)[-1:], kept.rsplit(" ", 1)[-1]]
    return [piece for piece in found if piece.strip()]


def conclusion_problem(text: str, answers: Sequence[str], verifier: Verifier) -> str | None:
    """The conclusion, if it is not the gold answer.

    The conclusion is the last statement of the form `the answer is ...`; without one, the last
    sentences that conclude. Statements that are denied or only supposed do not count.

    Args:
        text: The text; only its end is read.
        answers: The gold answer and its aliases.
        verifier: The benchmark's own.
    """
    gold = Gold([answer for answer in answers if normalise(folded(answer))], verifier)
    if not gold.answers:
        return None
    tail = folded(text.rstrip())[-_TAIL_CHARACTERS:]
    if (boxed := last_boxed(tail)) is not None:
        found = gold.is_in(boxed) or gold.is_in(f"${boxed}$")
        return None if found else f"conclusion: {boxed[:_SHOWN_CHARACTERS]}"
    sentences = list(Sentences(tail))[-_LAST_SENTENCES:]
    last = sentences[-1] if sentences else ""
    for sentence in reversed(sentences):
        stated = _statement(sentence)
        if stated is None:
            continue
        if gold.is_in(stated):
            return None
        if _NAMES_SOMETHING.search(f"is {stated}") or gold.is_closed or _is_short(stated):
            return f"conclusion: {stated[:_SHOWN_CHARACTERS]}"
        break
    if not any(_UNDECIDED.search(sentence) for sentence in sentences[-2:]) and _silent(
        sentences[-_SILENT_SENTENCES:], gold
    ):
        return None
    return f"conclusion: {last[:_SHOWN_CHARACTERS]}"


def _is_short(stated: str) -> bool:
    return len(stated.split()) <= 2


def _statement(sentence: str) -> str | None:
    """What a sentence states as the answer; None if it states none."""
    found = None
    for match in _STATED.finditer(sentence):
        if not _HYPOTHETICAL.search(_clause_before(sentence, match.start())):
            found = sentence[match.end() :].strip()
    if found:
        return found
    before = _STATED_BEFORE.search(sentence)
    if before is None or _HYPOTHETICAL.search(sentence, 0, before.start()):
        return None
    return sentence[: before.start()].strip() or None


def _clause_before(sentence: str, place: int) -> str:
    """The words before a place that can deny or suppose what follows."""
    before = sentence[:place]
    cut = max(before.rfind(mark) for mark in (", so ", ";", ": ", " so ", ", thus ", ", hence "))
    return before[cut + 1 :]


def _silent(sentences: Sequence[str], gold: Gold) -> bool:
    """Whether the last sentences give the answer without the word."""
    for number, sentence in enumerate(reversed(sentences)):
        if sentence.endswith("?"):
            continue
        concludes = _CONCLUDES.search(sentence) is not None
        if (not number or concludes) and gold.is_in(sentence, is_stated=False):
            return True
        if gold.is_number and _NUMBER.search(sentence):
            return False
        if concludes and _NAMES_SOMETHING.search(sentence):
            return False
        if not number and _NAMES_SOMETHING.search(sentence):
            return False
    return False


def _is_negated(words: Words, start: int) -> bool:
    """Whether a negation stands before a place, within its clause."""
    for back in range(start - 1, max(-1, start - 1 - _NEGATION_WORDS), -1):
        if words.ends[back]:
            return False
        if words.words[back] in _NEGATIONS:
            return words.words[back + 1 : back + 2] != ["only"]
        if tuple(words.words[back : back + 2]) in _PAIRED_NEGATIONS:
            return True
    return False
