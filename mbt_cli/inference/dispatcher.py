"""Keeps a window of requests in flight until the backlog is empty.

`concurrency` workers each take a ticket, send it, write what came of it to the journal, and take
the next: no task per row and no barrier between batches. A retry goes back to the backlog and
re-enters the window when it is due.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from mbt_cli.core.chat import Reply, Request
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.errors import BackendError
from mbt_cli.inference.client import Client
from mbt_cli.inference.journal import JournalIndex, JournalWriter
from mbt_cli.inference.queue import Backlog, Ticket
from mbt_cli.inference.replies import Outcome, ServerDiedError

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


class Ledger:
    """The one who settles tickets: a reply is written down first, then it counts.

    Args:
        index: Of the same journal; it learns of every record.
        handover: Gives on what is settled; null where nobody wants it.
    """

    def __init__(
        self,
        backlog: Backlog,
        journal: JournalWriter,
        index: JournalIndex,
        handover: Handover | None,
    ) -> None:
        self._backlog = backlog
        self._journal = journal
        self._index = index
        self._handover = handover

    def sync(self) -> None:
        """Wait until the journal is on the disk."""
        self._journal.sync()

    def keep(self, ticket: Ticket, reply: Reply, now: float) -> None:
        """Keep a final outcome of one content attempt; ask again where the rules say so."""
        key, attempt = ticket.request.key, ticket.content_attempt
        extent = self._journal.append(key, reply, attempt)
        self._index.add(self._journal.path, extent, key, reply, attempt)
        self._backlog.settle(ticket, reply, now)

    def hand_over(self, most: int) -> None:
        """Give on what is settled by now, so many requests at most."""
        if self._handover is not None:
            self._handover.give(most)


_LOOKS = 256
"""Requests of the journal that are passed over before others get their turn."""
_WATCH_SECONDS = 1.0
_HANDOVER_SECONDS = 0.01
_HANDED_OVER = 64
"""Settled requests that are given on at a time: a few milliseconds of work between replies."""
_FIRST_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 30.0
_REFUSED_BACKOFF_SECONDS = 1.0
_UNREACHABLE_IN_A_ROW = 3


class Dispatcher:
    """One run of a backlog against one endpoint."""

    def __init__(
        self,
        backlog: Backlog,
        ledger: Ledger,
        client: Client,
        run: RunSettings,
        alive: Callable[[], None] | None,
    ) -> None:
        self._backlog = backlog
        self._ledger = ledger
        self._client = client
        self._run = run
        self._alive = alive
        self._window = Window(run.concurrency)
        self._in_flight: dict[asyncio.Task[None], Ticket] = {}
        self._successes = 0
        self._unreachable_in_a_row = 0
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._drain_seconds = run.drain_seconds

    def stop(self, drain_seconds: float) -> None:
        """Send nothing more and wait so long for what is in flight; twice means at once."""
        if self._stopping.is_set():
            self._stopping_now.set()
        self._drain_seconds = drain_seconds
        self._stopping.set()

    async def work_off(self, workers: int) -> None:
        """Work off the backlog; returns early, with the journal flushed, after `stop`.

        Raises:
            ServerDiedError: The server died; the backlog holds what is still to be sent.
            BackendError: No request can succeed, or the endpoint cannot be reached any more.
            ArtifactError: The journal cannot be written.
        """
        tasks = [asyncio.create_task(self._worker()) for _ in range(workers)]
        everything = asyncio.gather(*tasks)
        watch: asyncio.Future[Any] = asyncio.gather(self._watch(), self._hand_over())
        try:
            await self._until_done(everything, watch)
        except ServerDiedError:
            self._backlog.bring_back(self._in_flight.values())
            raise
        finally:
            for task in (*tasks, watch):
                task.cancel()
            await asyncio.gather(everything, watch, return_exceptions=True)
            await asyncio.gather(*tasks, return_exceptions=True)
            self._ledger.sync()

    async def _until_done(
        self, everything: "asyncio.Future[list[None]]", watch: "asyncio.Future[Any]"
    ) -> None:
        first = asyncio.FIRST_COMPLETED
        stop = asyncio.create_task(self._stopping.wait())
        now = asyncio.create_task(self._stopping_now.wait())
        try:
            waited: set[asyncio.Future[Any]] = {everything, watch, stop}
            await asyncio.wait(waited, return_when=first)
            if stop.done() and not everything.done():
                limit = self._drain_seconds
                drained = asyncio.create_task(self._drained())
                await asyncio.wait({drained, watch, now}, timeout=limit, return_when=first)
                drained.cancel()
        finally:
            stop.cancel()
            now.cancel()
        for task in (watch, everything):
            if task.done():
                task.result()

    async def _drained(self) -> None:
        while self._in_flight:
            await asyncio.wait(list(self._in_flight), timeout=0.05)

    async def _watch(self) -> None:
        """See that the server lives, and that the disk has what the journal wrote."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self._look_alive()
            await asyncio.to_thread(self._ledger.sync)

    async def _hand_over(self) -> None:
        """Give on what is settled while the loop has nothing to do but wait for replies."""
        clock = asyncio.get_running_loop().time
        while True:
            slept_from = clock()
            await asyncio.sleep(_HANDOVER_SECONDS)
            if clock() - slept_from < 2 * _HANDOVER_SECONDS:  # nobody else wanted the time
                self._ledger.hand_over(_HANDED_OVER)

    def _look_alive(self) -> None:
        if self._alive is None:
            return
        try:
            self._alive()
        except BackendError as error:
            raise ServerDiedError(error.message, hint=error.hint) from error

    async def _worker(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            await self._window.enter()
            try:
                ticket = await self._next_ticket()
                if ticket is None:
                    return
                self._in_flight[task] = ticket
                self._count(ticket)
                outcome = await self._client.send(ticket)
                self._settle(ticket, outcome, clock())
                del self._in_flight[task]
            finally:
                self._window.leave()

    def _count(self, ticket: Ticket) -> None:
        self._backlog.counts.sent += 1
        ticket.attempts += 1
        ticket.charged += 1
        ticket.success_seen = self._successes

    async def _next_ticket(self) -> Ticket | None:
        """The next ticket; null when there is none left or the run stops."""
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            if ticket := self._backlog.take(clock(), looks=_LOOKS):
                return ticket
            if self._backlog.has_fresh:
                await asyncio.sleep(0)  # a long stretch of the journal: let others have a turn
            elif (due := self._backlog.next_due) is not None:
                await self._pause(due - clock())
            else:
                return None
        return None

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), max(0.0, seconds))
        except TimeoutError:
            return

    def _settle(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        wait_seconds = self._backoff(ticket, outcome)
        if outcome.unreachable:
            self._look_alive()
        if outcome.refused:
            self._window.refused(now=now, wait_seconds=wait_seconds)
            if self._successes > ticket.success_seen:
                ticket.charged -= 1  # others get through: it is the limit, not this request
        elif outcome.reply.failure is None:
            self._successes += 1
            self._unreachable_in_a_row = 0
            self._window.succeeded()
        if outcome.can_pass and ticket.charged < self._run.max_attempts:
            self._backlog.counts.retried += 1
            self._backlog.again(ticket, now + wait_seconds)
            return
        if outcome.unreachable and self._alive is not None:
            raise ServerDiedError(f"the server runs and cannot be reached: {outcome.reply.failure}")
        self._ledger.keep(ticket, outcome.reply, now)
        if outcome.unreachable:
            self._give_up_on_endpoint(ticket, outcome)

    def _backoff(self, ticket: Ticket, outcome: Outcome) -> float:
        if outcome.wait_seconds is not None:
            return outcome.wait_seconds
        first = _REFUSED_BACKOFF_SECONDS if outcome.refused else _FIRST_BACKOFF_SECONDS
        longest = min(_LONGEST_BACKOFF_SECONDS, first * 2.0 ** (ticket.charged - 1))
        return longest * random.uniform(0.5, 1.0)

    def _give_up_on_endpoint(self, ticket: Ticket, outcome: Outcome) -> None:
        """Stop when request after request finds nobody at the other end."""
        if self._successes > ticket.success_seen:
            return
        self._unreachable_in_a_row += 1
        if self._unreachable_in_a_row >= _UNREACHABLE_IN_A_ROW:
            raise BackendError(
                f"the endpoint cannot be reached: {outcome.reply.failure}",
                hint="see that the server runs and that `base_url` is right; the same command "
                "then goes on where this one ended",
            )
