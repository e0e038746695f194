"""Checked reading of fields in official records.

HotpotQA and 2WikiMultihopQA share a layout with two forms: `[[title, [sentence, ...]], ...]` in the
official files and `{title: [...], sentences: [[...], ...]}` on the hub.
"""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence

from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Document, Question


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


_MATH_TIERS = {"1": "easy", "2": "easy", "3": "medium", "4": "hard", "5": "hard"}


def math_tier(level: Json) -> str | None:
    """The tier of a level of MATH, which is written 3, "3" or "Level 3"; None of anything else.

    Example:
        >>> math_tier("Level 5"), math_tier(3), math_tier("Level ?")
        ('hard', 'medium', None)
    """
    found = re.fullmatch(r"(?:Level )?([1-5])", str(level))
    return _MATH_TIERS[found[1]] if found else None


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


def instructed(
    record: Mapping[str, Json], metadata: Callable[[Json, Json], Mapping[str, Json]]
) -> Question:
    """A record in the layout of IFEval, which has no gold answer, as a question.

    Args:
        record: `prompt`, `instruction_id_list`, `kwargs`, and an optional `key`.
        metadata: Checks ids and arguments of the instructions, as its verifier reads them.

    Raises:
        ValueError: The record is malformed.
    """
    prompt = text(record, "prompt")
    names = record.get("instruction_id_list")
    return Question(
        question_id=own_id(record, "key") or hashed_id(prompt),
        question=prompt,
        answer="",
        question_type=instruction_type(names),
        metadata={
            **rest(record, "key", "prompt", "instruction_id_list", "kwargs"),
            **metadata(names, record.get("kwargs")),
        },
    )


def instruction_type(names: Json) -> str:
    """The id of the only instruction of a question, or `several`.

    Example:
        >>> instruction_type(["punctuation:no_comma"]), instruction_type(["a:b", "c:d"])
        ('punctuation:no_comma', 'several')
    """
    return str(names[0]) if isinstance(names, list | tuple) and len(names) == 1 else "several"


def prompt(messages: Json) -> str:
    """The text of the last message of the user.

    Raises:
        ValueError: It is not a list with one.

    Example:
        >>> prompt([{"role": "system", "content": "Hi"}, {"role": "user", "content": "Who?"}])
        'Who?'
    """
    for message in reversed(messages) if isinstance(messages, list | tuple) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            return text(message, "content")
    raise ValueError("`messages` has no message of the user")


def ground_truth(value: Json) -> Mapping[str, Json]:
    """The object that says how a reply is checked: its text in Python or JSON, or a list of one.

    Raises:
        ValueError: It is something else.

    Example:
        >>> ground_truth("[{'instruction_id': ['a:b'], 'kwargs': [None]}]")
        {'instruction_id': ['a:b'], 'kwargs': [None]}
    """
    while not isinstance(value, Mapping):
        if isinstance(value, str):
            value = _parsed(value)
        elif isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        else:
            raise ValueError("`ground_truth` should be one object with instructions")
    return value


def _parsed(written: str) -> Json:
    try:
        return json.loads(written)
    except ValueError:
        pass
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("`ground_truth` is neither JSON nor a list of Python") from error


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
