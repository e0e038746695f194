"""Keeps a window of requests in flight until the backlog is empty.

`concurrency` workers each take a ticket, send it, write what came of it to the journal, and take
the next: no task per row and no barrier between batches. A retry goes back to the backlog and
re-enters the window when it is due.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from mbt_cli.core.run_settings import RunSettings
from mbt_cli.errors import BackendError
from mbt_cli.inference.backlog import Backlog, Ticket
from mbt_cli.inference.client import Client
from mbt_cli.inference.ledger import Ledger
from mbt_cli.inference.outcomes import Outcome, ServerDiedError
from mbt_cli.inference.window import Window

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
