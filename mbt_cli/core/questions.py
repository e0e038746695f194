"""A question as a value, and how its documents are written into a prompt."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """A titled text, as a tuple of sentences."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a benchmark; `core/rows.py: QUESTIONS` is its stored form.

    Args:
        supporting: (title, number of the sentence from 0) pairs that hold the answer.
        difficulty: `easy`, `medium` or `hard`, by the benchmark's own rule.
        metadata: Other fields of the record; JSON values.
        options: The answers to choose from, in the order in which they are shown.
        resolution: How far each option came true, from 0 to 1, in the same order: 1 for the one
            that did, shares where a market paid several. Empty while that is not known.
    """

    question_id: str
    question: str
    answer: str
    answer_aliases: tuple[str, ...] = ()
    context: tuple[Document, ...] = ()
    supporting: tuple[tuple[str, int], ...] = ()
    question_type: str | None = None
    hops: int | None = None
    difficulty: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    resolution: tuple[float, ...] = ()


def stated_option(question_id: str, options: Sequence[str]) -> int:
    """Number of the option that a prompt with `{{ opinion }}` states; the order does not matter.

    Example:
        >>> stated_option("q1", ["Yes", "No"]) + stated_option("q1", ["No", "Yes"])
        1
    """
    ranks = [sha256(f"{question_id}\n{option}".encode()).hexdigest() for option in options]
    return ranks.index(min(ranks))


def documents_text(context: Iterable[Mapping[str, Any]]) -> str:
    """Documents in the format of the published prompts: one per line, numbered from 0.

    Args:
        context: Structs of `rows.QUESTIONS["context"]`: title and sentences.

    Example:
        >>> documents_text([{"title": "Oslo", "sentences": ["Oslo is big.", " It is old."]}])
        'Document [0] (Title: Oslo) Oslo is big. It is old.'
    """
    return "\n".join(
        f"Document [{number}] (Title: {document['title']}) "
        f"{' '.join(map(str.strip, document['sentences']))}"
        for number, document in enumerate(context)
    )
