"""What every score computes, as Markdown, from the docstring of its class."""

import inspect
import re
from collections.abc import Iterator

from mbt_cli.manifest.field_words import field_lines
from mbt_cli.manifest.reference import plugin_classes, summary_of
from mbt_cli.registry import AnyScore

_PART = re.compile(r"([A-Z][A-Za-z]*(?:,? [A-Za-z']+){0,11}): (.*)")
"""A line that opens a part of a docstring: `Formula: ...`, `Known holes: ...`."""


def metric_reference() -> str:
    """One section a score: what it is, formula, unit, columns, known holes, settings."""
    return "\n\n".join(_section(kind, cls) for kind, cls in plugin_classes(AnyScore).items())


def _section(kind: str, cls: type[object]) -> str:
    parts = [f"- **{name}**: {text}" for name, text in docstring_parts(cls)]
    fields = list(field_lines(plugin_classes(AnyScore)[kind], elsewhere={}, leave_out={"kind"}))
    settings = ["- **Settings**:", *(f"    {line}" for line in fields)] if fields else []
    return "\n".join([f"## `{kind}`", "", summary_of(cls), "", *parts, *settings])


def docstring_parts(cls: type[object]) -> Iterator[tuple[str, str]]:
    """The named parts of a docstring behind its first paragraph, each on one line.

    Example:
        >>> from mbt_cli.scores.answer_rate import AnswerRate
        >>> [name for name, _ in docstring_parts(AnswerRate)]
        ['Formula', 'Unit', 'Reads', 'Failed rollout', 'Known holes']
    """
    name, words = "", list[str]()
    for line in inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[2].splitlines():
        if found := _PART.fullmatch(line):
            if name:
                yield name, " ".join(words)
            name, words = found[1], [found[2]]
        else:
            words.append(line)
    if name:
        yield name, " ".join(words)
