"""Printing: fitted to a terminal; in a pipe or file every line stays whole."""

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from mbt_cli.cli.streams import styled, visible

_WHOLE = 10_000
"""Line width, in characters, where stdout is not a terminal."""


class Terminal(Console):
    """A console that styles only what mbt styles: texts are not markup and cannot control it."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        file = styled(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if isinstance(renderable, Text) and visible(renderable.plain) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = visible(renderable.plain)  # fitted to its place as it is shown
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)


def printer() -> Terminal:
    """A console on stdout; in a pipe, lines are never wrapped, so that addresses stay whole."""
    is_shown = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Terminal() if is_shown else Terminal(soft_wrap=True, width=_WHOLE)


def foreign(text: str | None, style: str = "") -> Text:
    """Text from outside, escaped before it is fitted into a table."""
    return Text(visible(text), style=style)
