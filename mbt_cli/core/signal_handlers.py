"""Signal handlers that hold for a while."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled(
    numbers: Iterable[signal.Signals], handle: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """While this lasts, `handle` is called for these signals; afterwards who was before."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
