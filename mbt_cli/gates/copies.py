"""Copies: how much of a text is taken word by word from its question and documents."""

from collections.abc import Iterable, Sequence

_RUN_WORDS = 8
"""Words in a row that count as copied; shorter runs are names and common phrases."""


def runs_of(texts: Iterable[str]) -> frozenset[int]:
    """Hashes of every run of words in the texts."""
    return frozenset(run for text in texts for run in _runs(_words(text)))


def copied_share(text: str, sources: frozenset[int]) -> float:
    """Share of the words of a text that stand in runs of eight or more copied words.

    Example:
        >>> source = runs_of(["one two three four five six seven eight nine"])
        >>> copied_share("two three four five six seven eight nine and ten", source)
        0.8
    """
    words = _words(text)
    if not words:
        return 0.0
    copied = covered_to = 0
    for start, run in enumerate(_runs(words)):
        if run in sources:
            copied += start + _RUN_WORDS - max(start, covered_to)
            covered_to = start + _RUN_WORDS
    return copied / len(words)


def _words(text: str) -> list[str]:
    kept = (
        word.strip("\"'()[]{}.,;:!?*-\u201c\u201d\u2018\u2019") for word in text.lower().split()
    )
    return [word for word in kept if word]


def _runs(words: Sequence[str]) -> list[int]:
    ends = range(_RUN_WORDS, len(words) + 1)
    return [hash(tuple(words[end - _RUN_WORDS : end])) for end in ends]
