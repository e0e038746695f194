"""What a long stage tells while it runs; the screen that shows it is in `commands`."""

from typing import Protocol


class Progress(Protocol):
    """Receives counts; must return at once, since it is called in the hot path."""

    def start(self, label: str, total: int | None) -> None:
        """A piece of work begins, of `total` rows where that is known."""

    def advance(self, *, done: int = 0, failed: int = 0, reused: int = 0, tokens: int = 0) -> None:
        """So many more rows are done (failed and reused ones included), with so many tokens."""

    def note(self, text: str) -> None:
        """One line worth telling, such as a server restart."""


class Silent:
    """Shows nothing."""

    def start(self, label: str, total: int | None) -> None:
        """Show nothing."""

    def advance(self, *, done: int = 0, failed: int = 0, reused: int = 0, tokens: int = 0) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""
