"""What judges are shown of a rollout and its question, and what they share of their replies."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mbt_cli.core.chat import Json
from mbt_cli.errors import JudgeReplyError
from mbt_cli.verifiers.text import outside_thinking

_DECORATION = re.compile(r"\*\*|__|`|^\s*(?:[#>]+|[-*•+]|\d+[.)])\s+", re.MULTILINE)
_NUMBER = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<percent>%)?\s*(?:\([^()]*\))?\.?")
_BETWEEN = re.compile(r"\s*(?:[,;]\s*and\s+|[,;]|\s+and\s+|\n)\s*", re.IGNORECASE)
_SHOWN = 80


def judged_text(reply: str) -> str:
    """The reply without its thinking, stripped.

    Raises:
        JudgeReplyError: Nothing is left.
    """
    text = outside_thinking(reply).strip()
    if not text:
        raise JudgeReplyError("the reply is empty")
    return text


def undecorated(text: str) -> str:
    r"""Text without bold marks, backticks, headings, quote marks and list marks.

    Example:
        >>> undecorated("## **GRADE:** `A`\n- CONFIDENCE: 1")
        'GRADE: A\nCONFIDENCE: 1'
    """
    return _DECORATION.sub("", text)


def json_objects(text: str) -> Iterator[Mapping[str, Any]]:
    r"""Every outermost JSON object in a text, keys in lower case.

    Example:
        >>> list(json_objects('Sure: ```json\n{"Grade": "A"}\n``` done {not json}'))
        [{'grade': 'A'}]
    """
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            end = start + 1
        else:
            yield {str(key).lower(): item for key, item in value.items()}
        start = text.find("{", end)


def json_verdict(text: str, keys: Sequence[str]) -> Mapping[str, Any] | None:
    """The one JSON object in a text that has all the keys; None when there is none.

    Raises:
        JudgeReplyError: There are several and they differ in those keys.
    """
    found = [
        {key: value[key] for key in keys}
        for value in json_objects(text)
        if all(key in value for key in keys)
    ]
    if any(other != found[0] for other in found[1:]):
        raise JudgeReplyError(f"several verdicts that differ: {shown(json.dumps(found))}")
    return found[0] if found else None


def stated_choice(
    plain: str,
    *,
    choice: Callable[[str], str | None],
    label: re.Pattern[str],
    opening: Callable[[str], Sequence[str]],
) -> str:
    """The one choice that a plain reply states.

    Looked at: what stands behind a label (group `value`), the first and the last line where they
    are nothing but a choice, and a first line that opens with a choice and goes on.

    Args:
        plain: Undecorated text.
        choice: The choice that a piece of text is, or None.
        label: Pattern of a labelled line.
        opening: Choices in a first line that is more than a choice.

    Raises:
        JudgeReplyError: No choice is stated, or several that differ.
    """
    lines = [line for line in plain.splitlines() if line.strip()]
    pieces = [match["value"] for match in label.finditer(plain)]
    stated = {found for piece in (*pieces, *lines[:1], *lines[-1:]) if (found := choice(piece))}
    if lines and choice(lines[0]) is None:
        stated.update(opening(lines[0]))
    if len(stated) == 1:
        return stated.pop()
    what = f"several verdicts, {', '.join(sorted(stated))}," if stated else "no verdict"
    raise JudgeReplyError(f"{what} in {shown(plain)}")


def labelled_lines(text: str, labels: Sequence[str], *, ends: Sequence[str] = ()) -> dict[str, str]:
    r"""What stands behind each label at the start of a line, up to the next label.

    Args:
        text: Undecorated text.
        labels: Labels wanted, matched in any case.
        ends: Further labels that end a value and are not returned.

    Returns:
        Label to its text; labels that are missing are left out.

    Raises:
        JudgeReplyError: A label stands there twice with different values.

    Example:
        >>> labelled_lines("PHASES: 1,\n2\nNotes: none", ["PHASES"], ends=["NOTES"])
        {'PHASES': '1,\n2'}
    """
    names = "|".join(re.escape(label) for label in (*labels, *ends))
    heading = re.compile(rf"^[ \t]*({names})[ \t]*[:=]", re.IGNORECASE | re.MULTILINE)
    _, *parts = heading.split(text)
    wanted = {label.upper(): label for label in labels}
    found: dict[str, str] = {}
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        label = wanted.get(name.upper())
        if label is None:
            continue
        if found.setdefault(label, value.strip()) != value.strip():
            raise JudgeReplyError(f"{label} stands there twice with different values")
    return found


def shown(text: str) -> str:
    """A piece of a reply for a message: one line, at most 80 characters."""
    line = " ".join(text.split())
    return f"`{line[:_SHOWN]}...`" if len(line) > _SHOWN else f"`{line}`"


def confidence(text: str) -> float:
    """A confidence in [0, 1], written as a number or in per cent.

    Raises:
        JudgeReplyError: Not a number, not in range, or a bare number that could be per cent.

    Example:
        >>> confidence("0.9"), confidence("85%"), confidence(".5 (fairly sure)")
        (0.9, 0.85, 0.5)
    """
    match = _NUMBER.fullmatch(text.strip())
    value = float(match["number"]) if match else -1.0
    if match and match["percent"]:
        # `0.9 %` may mean either
        value = value / 100 if value == 0 or value > 1 else -1.0
    if not 0 <= value <= 1:
        raise JudgeReplyError(f"CONFIDENCE is not a number from 0 to 1: {shown(text)}")
    return value


def is_none(text: str) -> bool:
    """Whether a list was given as NONE, in any case and brackets.

    Example:
        >>> is_none("[None].")
        True
    """
    return text.strip().strip("[]{}().\"' ").lower() in ("none", "n/a")


def list_items(text: str) -> list[str]:
    r"""Items of a list written with commas, semicolons, lines or `and`, brackets stripped.

    Raises:
        JudgeReplyError: An item is empty, as in `1,,2`, or there is none at all.

    Example:
        >>> list_items("[1, 2 and 3]"), list_items("{1\n2}")
        (['1', '2', '3'], ['1', '2'])
    """
    inner = text.strip().rstrip(".").strip()
    while len(inner) > 1 and inner[0] + inner[-1] in ("[]", "{}", "()") and "[[" not in inner[:2]:
        inner = inner[1:-1].strip()
    items = [item.strip() for item in _BETWEEN.split(inner)]
    if not all(items):
        raise JudgeReplyError(f"a list has an empty item: {shown(text)}")
    return items


def first_line(text: str) -> str:
    """The first line of a value; what stands below it belongs to nothing that was asked for."""
    return (text.splitlines() or [""])[0]


def as_text(value: Any) -> str:
    """A JSON value as the plain line that says the same; an empty list is NONE.

    Example:
        >>> as_text([1, 2]), as_text([]), as_text(0.5)
        ('1, 2', 'NONE', '0.5')
    """
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "NONE"
    return str(value)


CONFIDENCE_SCHEMA: Json = {"type": "number", "enum": [step / 20 for step in range(21)]}
"""From 0 to 1 in steps of 0.05: a number without end lets a small model write digits until it is
cut."""


def gold_answers_text(row: Mapping[str, Any]) -> str:
    """The gold answer and its aliases for a prompt, one a line."""
    aliases = [alias for alias in row["gold_aliases"] or [] if alias != row["gold_answer"]]
    return "\n".join(f"- {text}" for text in (row["gold_answer"], *aliases))
