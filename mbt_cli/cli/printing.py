"""Printing: fitted to a terminal; in a pipe or file every line stays whole."""

import os
import re
import sys

from rich.console import Console
from rich.text import Text

_WHOLE = 10_000
"""Line width, in characters, where stdout is not a terminal."""


def printer() -> Console:
    """A console on stdout; in a pipe, lines are never wrapped, so that addresses stay whole."""
    is_shown = sys.stdout.isatty() or "COLUMNS" in os.environ
    if is_shown:
        return Console(highlight=False)
    return Console(highlight=False, soft_wrap=True, width=_WHOLE)


def counted(count: int, thing: str) -> str:
    """A count with its noun.

    Example:
        >>> counted(1, "job"), counted(2, "server boot")
        ('1 job', '2 server boots')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


# C0 and C1 controls except tab and line feed, then bidirectional controls
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str | None) -> str:
    r"""The text with control characters escaped, so that it cannot control the terminal.

    Example:
        >>> visible("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text or "")


def foreign(text: str | None, style: str = "") -> Text:
    """The same as Rich text; brackets are not markup."""
    return Text(visible(text), style=style)
