"""Where commands print: fitted to a terminal; in a pipe or file every line whole."""

import os
import sys

from rich.console import Console

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
