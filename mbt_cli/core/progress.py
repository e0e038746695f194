"""Progress of a long stage; `cli/screen.py` displays it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Progress(Protocol):
    """Receives counts; must return at once, since it is called in the hot path."""

    def start(self, label: str, total: int | None) -> None:
        """Start a task of `total` rows, if known."""

    def advance(self, *, done: int = 0, failed: int = 0, reused: int = 0, tokens: int = 0) -> None:
        """Count finished rows (failed and reused ones included) and their tokens."""

    def note(self, text: str) -> None:
        """Show one line, such as a server restart."""

    def waiting(self, why: str) -> None:
        """Show why nothing is sent now; called each second, empty while requests are sent."""

    def paused(self) -> AbstractContextManager[None]:
        """Show nothing that moves while the context is open: a person types."""


class Silent:
    """Progress that shows nothing."""

    def start(self, label: str, total: int | None) -> None:
        """Show nothing."""

    def advance(self, *, done: int = 0, failed: int = 0, reused: int = 0, tokens: int = 0) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def waiting(self, why: str) -> None:
        """Show nothing."""

    def paused(self) -> AbstractContextManager[None]:
        """Nothing moves."""
        return nullcontext()
