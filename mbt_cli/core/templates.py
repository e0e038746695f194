"""Prompt templates: role headings and `{{ placeholders }}`, filled in one pass.

    === system ===
    You answer questions.
    === user ===
    {{ question }}

A single turn `=== text ===` is a plain-text prompt, which the model continues without a chat
template; an empty line at its end is part of it. A section `=== example ===` before the turns is
the form of one worked example, and `{{ examples }}` stands for all of them, with an empty line
between two.

Only `{{ name }}` is special: braces, tags and code in questions and documents are kept as they
are, and a placeholder within a value is not replaced.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from mbt_cli.core.chat import TEXT, Message

_HEADING = re.compile(r"^=== (\w+) ===[ \t]*$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_ROLES = ("system", "user", "assistant", TEXT)
_EXAMPLE = "example"
EXAMPLES = "examples"
"""The placeholder for worked examples."""
_OF_EXAMPLE = frozenset({"question", "documents", "answer", "solution"})


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: (role, text) pairs, the sha256 of its source and its placeholders.

    `example` is the form of a worked example; empty if it has none.
    """

    name: str
    sha256: str
    turns: tuple[tuple[str, str], ...]
    placeholders: frozenset[str]
    example: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it is a plain-text prompt."""
        return self.turns[0][0] == TEXT

    def with_system(self, text: str) -> "Template":
        """The same with a system message in place of its own; its sha256 counts the text.

        Raises:
            ValueError: It is plain text, which has no turns; or the text has a placeholder.
        """
        if self.is_text:
            raise ValueError("is plain text, which has no system message")
        if not text.strip() or _PLACEHOLDER.search(text):
            raise ValueError("a system prompt is a text without placeholders")
        rest = [turn for turn in self.turns if turn[0] != "system"]
        return replace(
            self,
            sha256=sha256(f"{self.sha256}\n{text}".encode()).hexdigest(),
            turns=(("system", text.strip()), *rest),
            placeholders=placeholders_in("\n".join(text for _, text in rest)),
        )

    def examples(self, solved: Iterable[Mapping[str, str]]) -> str:
        """The value of `{{ examples }}`: each question, documents, answer and solution in form."""
        return "\n\n".join(filled(self.example, values) for values in solved)

    def fill(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """The conversation with every placeholder replaced by its value.

        Raises:
            KeyError: A placeholder has no value.
        """
        return tuple(Message(role=role, content=filled(text, values)) for role, text in self.turns)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with every placeholder replaced by its value; KeyError if one has none."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def placeholders_in(text: str) -> frozenset[str]:
    """The placeholders of a text."""
    return frozenset(_PLACEHOLDER.findall(text))


def parse_template(name: str, source: str, *, known: frozenset[str]) -> Template:
    r"""Parse a template and check its placeholders.

    Raises:
        ValueError: It has no role heading, an unknown role, text before the first heading, an
            empty turn, an unknown placeholder, or none; or a plain text beside other turns.

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
    turns, example = [], ""
    for role, text in zip(parts[1::2], parts[2::2], strict=True):
        if role not in (*_ROLES, _EXAMPLE):
            raise ValueError(f"has the heading `=== {role} ===`; roles are {', '.join(_ROLES)}")
        if not text.strip():
            raise ValueError(f"has an empty {role} turn")
        if role == _EXAMPLE:
            _check_placeholders(text, _OF_EXAMPLE)
            example = text.strip()
        else:
            turns.append((role, _as_written(text) if role == TEXT else text.strip()))
    if not turns:
        raise ValueError("has no prompt after its example")
    if len(turns) > 1 and TEXT in (role for role, _ in turns):
        raise ValueError("has `=== text ===` beside other turns; a plain text is the only one")
    prompt = "\n".join(text for _, text in turns)
    placeholders = _check_placeholders(prompt, known)
    if EXAMPLES in placeholders and not example:
        raise ValueError("has `{{ examples }}` and no `=== example ===`, the form of one example")
    if known and not placeholders:
        names = ", ".join(f"{{{{ {n} }}}}" for n in sorted(known))
        raise ValueError(f"has no placeholder, so all requests would be equal; there are {names}")
    return Template(name, sha256(source.encode()).hexdigest(), tuple(turns), placeholders, example)


def _as_written(text: str) -> str:
    r"""A plain text, whose white space at the end counts, without the line break of its last line.

    Example:
        >>> _as_written("\nAnswer:\n"), _as_written("\n[BEGIN]\n\n")
        ('Answer:', '[BEGIN]\n')
    """
    return text.lstrip("\n").removesuffix("\n")


def _check_placeholders(text: str, known: frozenset[str]) -> frozenset[str]:
    placeholders = placeholders_in(text)
    if unknown := sorted(placeholders - known):
        names = ", ".join(f"{{{{ {n} }}}}" for n in unknown)
        raise ValueError(
            f"has the unknown placeholder {names}; there are {', '.join(sorted(known))}"
        )
    return placeholders
