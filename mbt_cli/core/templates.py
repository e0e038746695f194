"""Prompt templates: role headings and `{{ placeholders }}`, filled in one pass.

    === system ===
    You answer questions.
    === user ===
    {{ question }}

Only `{{ name }}` is special: braces, tags and code in questions and documents are kept as they
are, and a placeholder within a value is not replaced.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from mbt_cli.core.chat import Message

_HEADING = re.compile(r"^=== (\w+) ===[ \t]*$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: (role, text) pairs, the sha256 of its source and its placeholders."""

    name: str
    sha256: str
    turns: tuple[tuple[str, str], ...]
    placeholders: frozenset[str]

    def fill(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """The conversation with every placeholder replaced by its value.

        Raises:
            KeyError: A placeholder has no value.
        """

        def value(match: re.Match[str]) -> str:
            return values[match[1]]

        return tuple(
            Message(role=role, content=_PLACEHOLDER.sub(value, text)) for role, text in self.turns
        )


def parse_template(name: str, source: str, *, known: frozenset[str]) -> Template:
    r"""Parse a template and check its placeholders.

    Raises:
        ValueError: It has no role heading, an unknown role, text before the first heading, an
            empty turn, an unknown placeholder, or none.

    Example:
        >>> parse_template("t", "=== user ===\nSay {{ word }}", known=frozenset({"word"})).fill(
        ...     {"word": "{{ word }}"}
        ... )
        ({'role': 'user', 'content': 'Say {{ word }}'},)
    """
    parts = _HEADING.split(source)
    if len(parts) < 3:
        raise ValueError("has no `=== user ===` heading, which must precede the prompt")
    if parts[0].strip():
        raise ValueError("has text before its first heading")
    turns = []
    for role, text in zip(parts[1::2], parts[2::2], strict=True):
        if role not in _ROLES:
            raise ValueError(f"has the heading `=== {role} ===`; roles are {', '.join(_ROLES)}")
        if not text.strip():
            raise ValueError(f"has an empty {role} turn")
        turns.append((role, text.strip()))
    placeholders = frozenset(_PLACEHOLDER.findall(source))
    if unknown := sorted(placeholders - known):
        names = ", ".join(f"{{{{ {n} }}}}" for n in unknown)
        raise ValueError(
            f"has the unknown placeholder {names}; there are {', '.join(sorted(known))}"
        )
    if known and not placeholders:
        names = ", ".join(f"{{{{ {n} }}}}" for n in sorted(known))
        raise ValueError(f"has no placeholder, so all requests would be equal; there are {names}")
    return Template(name, sha256(source.encode()).hexdigest(), tuple(turns), placeholders)
