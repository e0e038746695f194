"""How many requests may be in flight now: fewer after `429`, more again after each success."""

import asyncio
from collections import deque

_GROW_PER_SUCCESS = 0.125
_REFUSALS_IN_A_ROW = 3


class Window:
    """A gate of adaptive width.

    Each refusal takes one place away and eight successes give one back, so that a width above what
    the server takes falls to it within one round of requests, while a few stray refusals cost
    nothing. Several refusals without a success between them mean that the server wants quiet:
    nothing is sent before the time it named.

    Args:
        width: Requests in flight at most.
    """

    def __init__(self, width: int) -> None:
        self._most = width
        self._width = float(width)
        self._in_flight = 0
        self._parked: deque[asyncio.Future[None]] = deque()
        self._quiet_until = 0.0
        self._refusals_in_a_row = 0

    @property
    def width(self) -> int:
        """Requests that may be in flight now."""
        return int(self._width)

    async def enter(self) -> None:
        """Wait for a place."""
        loop = asyncio.get_running_loop()
        while True:
            quiet = self._quiet_until - loop.time()
            if quiet > 0:
                await asyncio.sleep(quiet)
            elif self._in_flight < self.width:
                self._in_flight += 1
                return
            else:
                place = loop.create_future()
                self._parked.append(place)
                await place

    def leave(self) -> None:
        """Give the place back."""
        self._in_flight -= 1
        for _ in range(self.width - self._in_flight):
            if not self._parked:
                return
            place = self._parked.popleft()
            if not place.done():
                place.set_result(None)

    def succeeded(self) -> None:
        """A reply came: a little more may be in flight."""
        self._refusals_in_a_row = 0
        if self._width < self._most:
            self._width = min(self._most, self._width + _GROW_PER_SUCCESS)

    def refused(self, *, now: float, wait_seconds: float) -> None:
        """The server said that it gets too many requests."""
        self._refusals_in_a_row += 1
        self._width = max(1.0, self._width - 1.0)
        if self._refusals_in_a_row >= _REFUSALS_IN_A_ROW:
            self._quiet_until = max(self._quiet_until, now + wait_seconds)
