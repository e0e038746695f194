"""Text that models wrote, made safe for a terminal."""

import re

from rich.text import Text

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
