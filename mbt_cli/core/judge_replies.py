"""Reading what judges write: JSON with text around it, or labelled lines with decoration.

A reply is read only when it can mean one thing; everything else raises JudgeReplyError, which
becomes the failure of that row.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mbt_cli.core.answers import outside_thinking
from mbt_cli.errors import JudgeReplyError

_DECORATION = re.compile(r"\*\*|__|`|^\s*(?:[#>]+|[-*•+]|\d+[.)])\s+", re.MULTILINE)
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
