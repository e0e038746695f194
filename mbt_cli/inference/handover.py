"""Gives every request with its outcome on, in the requests' order, while others are in flight."""

from collections.abc import Callable, Iterable

from mbt_cli.core.chat import Reply, Request
from mbt_cli.inference.backlog import Backlog
from mbt_cli.inference.journal import JournalIndex

Take = Callable[[Request, Reply], None]
"""Is given a request and what became of it."""


def outcome_of(request: Request, index: JournalIndex) -> Reply:
    """What became of a request; the failure `not_asked` where nothing did."""
    return index.reply(request.key) or Reply(failure="not_asked", attempts=0)


class Handover:
    """Walks the requests a second time, behind the backlog and never past one that is open.

    Replies are read back from the journal: what waits for an earlier request takes no memory.

    Args:
        requests: The same as the backlog's, in the same order.
        take: Called once for each of them.
    """

    def __init__(
        self, requests: Iterable[Request], backlog: Backlog, index: JournalIndex, take: Take
    ) -> None:
        self._requests = iter(requests)
        self._backlog = backlog
        self._index = index
        self._take = take
        self._walked = 0
        self._waiting: Request | None = None

    def give(self, most: int) -> None:
        """Give on what is settled by now, so many requests at most."""
        for _ in range(most):
            request = self._waiting or self._next()
            if request is None or self._backlog.is_open(request):
                self._waiting = request
                return
            self._waiting = None
            self._take(request, outcome_of(request, self._index))

    def finish(self) -> None:
        """Give on all that is left; for when the backlog is empty."""
        self.give(self._backlog.looked_at - self._walked + 1)

    def _next(self) -> Request | None:
        if self._walked == self._backlog.looked_at:
            return None
        self._walked += 1
        return next(self._requests)
