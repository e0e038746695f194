"""stdout and stderr: secrets are masked, and text from outside cannot control the terminal.

Without Rich, which most commands never load.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TextIO, cast

from mbt_cli.core.secrets import mask

_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 except tab and line feed
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, bidirectional controls
    r"\ud800-\udfff]"  # bytes of file names that are not text
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def visible(text: str | None) -> str:
    r"""The text with control characters escaped, so that it cannot control the terminal.

    Escapes stay valid in JSON, whose texts hold no raw C0 control.

    Example:
        >>> visible("a\x1b[2Jb\x9b\u202ec")
        'a\\x1b[2Jb\\u009b\\u202ec'
    """
    return _CONTROLS.sub(_escaped, text) if text else ""


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 32 else f"\\u{code:04x}"


def log_text(text: str) -> str:
    """Lines of another program's log without its colours; progress bars take a line each."""
    return _COLOUR.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


class CleanStream:
    """A text stream that changes everything that is written to it.

    Args:
        raw: The stream below.
        clean: Makes the text that is written there.
        may_vanish: Whether its loss stops no run: a terminal may close, a disk may be full.
    """

    def __init__(self, raw: TextIO, clean: Callable[[str], str], *, may_vanish: bool) -> None:
        self.raw = raw
        self.may_vanish = may_vanish
        self._clean = clean

    def write(self, text: str) -> int:
        """Write the cleaned text."""
        if not isinstance(text, str):  # with bytes, Typer asks whether a stream is binary
            raise TypeError(f"a text stream takes no {type(text).__name__}")
        with suppress(OSError) if self.may_vanish else nullcontext():
            self.raw.write(self._clean(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with suppress(OSError) if self.may_vanish else nullcontext():
            self.raw.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the cleaned lines."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # nothing may pass below
            raise AttributeError(name)
        return getattr(self.raw, name)


@contextmanager
def clean_output() -> Iterator[None]:
    """Mask secrets and escape control characters in all that this process prints."""

    def clean(text: str) -> str:
        return visible(mask(text))

    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, CleanStream(sys.stdout, clean, may_vanish=False))
    sys.stderr = cast(TextIO, CleanStream(sys.stderr, clean, may_vanish=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def styled(stream: TextIO) -> TextIO:
    """A stream for text that may have styles, as it is cleaned already; masks secrets only."""
    if not isinstance(stream, CleanStream):
        return stream
    return cast(TextIO, CleanStream(stream.raw, mask, may_vanish=stream.may_vanish))
