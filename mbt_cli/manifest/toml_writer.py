"""A merged manifest as TOML again: what a submission keeps for itself."""

import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"^[A-Za-z0-9_-]+$")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_text(tree: Mapping[str, Any]) -> str:
    """TOML of a manifest's tree: a table a line below each heading, `[[stage]]` for stages.

    Raises:
        TypeError: It holds a value that no manifest can hold.

    Example:
        >>> print(toml_text({"study": {"name": "s", "seed": 1}, "stage": [{"kind": "report"}]}))
        [study]
        name = "s"
        seed = 1
        <BLANKLINE>
        [[stage]]
        kind = "report"
        <BLANKLINE>
    """
    lines: list[str] = []
    for key, table in tree.items():
        blocks = table if key == "stage" else [table]
        heading = f"[[{_key(key)}]]" if key == "stage" else f"[{_key(key)}]"
        for block in blocks:
            lines.append(heading)
            lines.extend(f"{_key(name)} = {toml_value(value)}" for name, value in block.items())
            lines.append("")
    return "\n".join(lines)


def _key(key: str) -> str:
    return key if _BARE_KEY.match(key) else _text(key)


def toml_value(value: object) -> str:
    """A value as it stands behind a key.

    Raises:
        TypeError: It is nothing that a manifest can hold.

    Example:
        >>> toml_value({"train": (1, 2.5), "note": "a"})
        '{ train = [1, 2.5], note = "a" }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"{value!r} is nothing that a manifest holds")


def _text(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(c) or _shown(c) for c in text) + '"'


def _shown(character: str) -> str:
    is_control = ord(character) < 0x20 or ord(character) == 0x7F
    return f"\\u{ord(character):04X}" if is_control else character
