"""Checked reading of fields in official records.

HotpotQA and 2WikiMultihopQA share a layout with two forms: `[[title, [sentence, ...]], ...]` in the
official files and `{title: [...], sentences: [[...], ...]}` on the hub.
"""

import hashlib
from collections.abc import Mapping, Sequence

from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Document


def text(record: Mapping[str, Json], *names: str) -> str:
    """The first of the named fields that exists, stripped.

    Raises:
        ValueError: None exists, or it is not a string, or it is empty.

    Example:
        >>> text({"id": " a1 "}, "_id", "id")
        'a1'
    """
    for name in names:
        if (value := record.get(name)) is not None:
            if not isinstance(value, str):
                raise ValueError(f"`{name}` should be a string, not {_kind(value)}")
            if not value.strip():
                raise ValueError(f"`{name}` is empty")
            return value.strip()
    raise ValueError(f"`{names[0]}` is missing")


def answer_text(value: Json) -> str:
    """An answer as text: a string, a number, or true and false as yes and no.

    Example:
        >>> answer_text(7), answer_text(True), answer_text(" Oslo ")
        ('7', 'yes', 'Oslo')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value)
    return text({"answer": value}, "answer")


def own_id(record: Mapping[str, Json], *names: str) -> str | None:
    """The record's own id, which may be a number; None without one."""
    for name in names:
        value = record.get(name)
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return None


def hashed_id(question: str) -> str:
    """An id from the text of a question; it stays when other records are added or moved."""
    return f"question-{hashlib.sha256(question.encode()).hexdigest()[:16]}"


def optional_text(record: Mapping[str, Json], name: str) -> str | None:
    """A field that may be missing; ValueError if it is not a string."""
    return text(record, name) if record.get(name) else None


def texts(value: Json, name: str) -> tuple[str, ...]:
    """A list of strings; null counts as an empty list.

    Raises:
        ValueError: It is not a list of strings.
    """
    items = _checked_list(value or [], name)
    if set(map(type, items)) - {str}:
        for item in items:
            _checked_text(item, name)
    return tuple(items)


def documents(context: Json) -> tuple[Document, ...]:
    """Documents of a HotpotQA or 2WikiMultihopQA record, in either form.

    Raises:
        ValueError: It has neither form.

    Example:
        >>> documents([["Oslo", ["A city.", " It is old."]]])
        (Document(title='Oslo', sentences=('A city.', ' It is old.')),)
    """
    return tuple(
        Document(_checked_text(title, "context"), texts(sentences, "context"))
        for title, sentences in _pairs(context, "context", ("title", "sentences"))
    )


def supporting(facts: Json) -> tuple[tuple[str, int], ...]:
    """(title, sentence from 0) pairs of a HotpotQA or 2WikiMultihopQA record, in either form.

    A few official records name sentences that their document does not have; these are kept.

    Raises:
        ValueError: It has neither form.
    """
    pairs = _pairs(facts or [], "supporting_facts", ("title", "sent_id"))
    for _, sentence in pairs:
        if not isinstance(sentence, int):
            raise ValueError(f"`supporting_facts` should contain numbers, not {sentence!r}")
    return tuple((_checked_text(title, "supporting_facts"), number) for title, number in pairs)


def rest(record: Mapping[str, Json], *taken: str) -> dict[str, Json]:
    """The record without the fields in `taken`."""
    return {name: value for name, value in record.items() if name not in taken}


def _pairs(value: Json, name: str, columns: tuple[str, str]) -> list[tuple[Json, Json]]:
    if isinstance(value, dict):
        first, second = (_checked_list(value.get(column), name) for column in columns)
        if len(first) != len(second):
            raise ValueError(f"`{name}` has {len(first)} {columns[0]} for {len(second)} others")
        return list(zip(first, second, strict=True))
    pairs = [_checked_list(pair, name) for pair in _checked_list(value, name)]
    if set(map(len, pairs)) - {2}:
        raise ValueError(f"`{name}` contains something that is not a pair")
    return [(pair[0], pair[1]) for pair in pairs]


def _checked_list(value: Json, name: str) -> Sequence[Json]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"`{name}` should be a list, not {_kind(value)}")
    return value


def _checked_text(value: Json, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"`{name}` should contain strings, not {_kind(value)}")
    return value


def _kind(value: Json) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    names = {bool: "a Boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else "a list")
