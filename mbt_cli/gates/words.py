"""Words and sentences of a text, as the gates read them."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mbt_cli.verifiers.text import normalise

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2007\u2009\u202f", " "),
        **dict.fromkeys("\u200b\u2060\ufeff\u00ad", ""),
    }
)
_END = re.compile(r"[.!?][\"')\]]*+\s++(?=[\"'(\[]*[^\Wa-z_])|\n++")
_NO_END = re.compile(r"(?:\b[A-Z]|\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Sgt|Gen|Prof|No|vs|cf|Mt|Ft|Capt))\.$")
_LONGEST_ABBREVIATION = 6
_CLAUSE_ENDS = (",", ";", ":", ".", "!", "?", ")")
_WHOLE_WORDS = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")


def folded(text: str) -> str:
    """The text with typographic quotes, dashes and spaces as ASCII ones, and no soft hyphens.

    Example:
        >>> folded("the \u201cX\u2011ray\u201d")
        'the "X-ray"'
    """
    return text if text.isascii() else text.translate(_PLAIN)


class Sentences:
    """The sentences of a text, by place.

    A full stop after an initial or a title such as `Dr.` ends none.

    Args:
        text: Folded.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *self._boundaries(), len(text)]

    def __iter__(self) -> Iterator[str]:
        for start, end in pairwise(self._starts):
            if sentence := self.text[start:end].strip():
                yield sentence

    def around(self, place: int, most: int) -> tuple[int, int]:
        """Start and end of the sentence at a place, at most so many characters each way."""
        after = min(bisect_right(self._starts, place), len(self._starts) - 1)
        start, end = self._starts[after - 1], self._starts[after]
        return max(start, place - most), min(end, place + most)

    def _boundaries(self) -> Iterator[int]:
        for match in _END.finditer(self.text):
            before = self.text[max(0, match.start() - _LONGEST_ABBREVIATION) : match.start() + 1]
            if not (self.text[match.start()] == "." and _NO_END.search(before)):
                yield match.end()


@dataclass(frozen=True, slots=True)
class Words:
    """The normalised words of a sentence, without articles.

    Args:
        ends: Whether a clause ends after the word.
        plain: The sentence as it is, for languages that do not separate words.
    """

    words: Sequence[str]
    ends: Sequence[bool]
    plain: str

    @classmethod
    def of(cls, sentence: str) -> "Words":
        """The words of a folded sentence."""
        words, ends = [], []
        for token in sentence.split():
            core = normalise(token)
            if core:
                words.append(core)
                ends.append(token.endswith(_CLAUSE_ENDS))
            elif ends:
                ends[-1] = ends[-1] or not token.isalpha()  # a dash or a lone comma
        return cls(words, ends, sentence)

    def places(self, name: str) -> Iterator[tuple[int, int]]:
        """Start and end of every place where a name stands as whole words."""
        wanted = normalise(folded(name)).split()
        if not wanted:
            return
        first, size = wanted[0], len(wanted)
        for start, word in enumerate(self.words):
            if word == first and list(self.words[start : start + size]) == wanted:
                yield start, start + size
        if _WHOLE_WORDS.search(name) and name in self.plain:
            yield 0, len(self.words)


def names_any(text: str, names: Sequence[str]) -> bool:
    """Whether a text has one of the names as whole words; marks such as `+` count verbatim.

    Example:
        >>> names_any("It is \u2018War\u2019.", ["the war"]), names_any("Norway", ["no"])
        (True, False)
    """
    given = f" {normalise(folded(text))} "
    for name in names:
        wanted = normalise(folded(name))
        if wanted and (f" {wanted} " in given or (_WHOLE_WORDS.search(name) and name in text)):
            return True
    # an answer of punctuation alone, such as `+`, has no words to search for
    return any(name in text for name in names if name and not normalise(name))
