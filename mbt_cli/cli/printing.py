"""Where commands print: fitted to a terminal; in a pipe or file every line whole."""

import os
import re
import sys

from rich.console import Console
from rich.text import Text

_WHOLE = 10_000
"""Characters a line may have where no terminal has to show it."""


def printer() -> Console:
    """Stdout. What a program reads, an address above all, is never broken over lines."""
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


# C0 and C1 controls but tab and line feed, then those that turn the direction of writing
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str | None) -> str:
    r"""Control characters as their escapes, so that no text moves the cursor or paints the screen.

    Example:
        >>> visible("a\x1b[2Jb")
        'a\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text or "")


def foreign(text: str | None, style: str = "") -> Text:
    """The same as a Rich text; brackets in it are no markup."""
    return Text(visible(text), style=style)
