"""What is still to be sent: requests read one at a time, retries when they are due."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mbt_cli.core.chat import Reply, Request
from mbt_cli.core.keys import retry_seed
from mbt_cli.core.progress import Progress
from mbt_cli.inference.journal import JournalIndex, Standing, digest_of

_PASSING = (
    *("timeout", "connection", "malformed_reply"),
    *("http_408", "http_409", "http_425", "http_429", "http_5"),
)


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Which outcomes are asked for again.

    Args:
        retry_on: Finish reasons and failures that are asked again with a new seed.
        content_attempts: Times a request is asked for its content at most, the first included.
        retry_failed: Ask again for every failure of an earlier run, not only passing ones.
    """

    retry_on: tuple[str, ...] = ()
    content_attempts: int = 3
    retry_failed: bool = False

    def next_attempt(self, standing: Standing, seed: int) -> int | None:
        """Content attempt to ask next for a request that has a record; null when it is settled.

        Args:
            standing: What the journal knows of it.
            seed: The request's own seed, of attempt 0.
        """
        attempt = standing.content_attempt
        if attempt is None:
            attempt = self._attempt_of_seed(standing.seed, seed)
        if standing.failure and (self.retry_failed or can_pass(standing.failure)):
            return attempt
        return self.after(standing.failure, standing.finish_reason, attempt)

    def after(self, failure: str | None, finish_reason: str | None, attempt: int) -> int | None:
        """Content attempt that follows an outcome; null when the outcome is final."""
        reason = failure.partition(":")[0] if failure else finish_reason
        again = reason in self.retry_on and attempt + 1 < self.content_attempts
        return attempt + 1 if again else None

    def _attempt_of_seed(self, sent: int | None, seed: int) -> int:
        attempts = range(self.content_attempts)
        return next((a for a in attempts if sent == retry_seed(seed, a)), 0)


def can_pass(failure: str) -> bool:
    """Whether a failure may be gone when the same request is sent another day."""
    return failure.startswith(_PASSING)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request on its way.

    Args:
        request: With the seed that is sent: of the content attempt, not of attempt 0.
        content_attempt: 0, then one more each time it is asked again for its content.
        seed: Seed of attempt 0.
        attempts: Times it was sent, whatever for.
        charged: Of those, the times that count towards `max_attempts`.
        success_seen: Replies the run had got when it was last sent.
    """

    request: Request
    content_attempt: int
    seed: int
    attempts: int = 0
    charged: int = 0
    success_seen: int = 0

    def asked_again(self, content_attempt: int) -> "Ticket":
        """The same request with the seed of a later content attempt."""
        ticket = ticket_of(self.request, content_attempt, seed=self.seed)
        ticket.attempts = self.attempts
        return ticket


def ticket_of(request: Request, content_attempt: int, *, seed: int) -> Ticket:
    """A request as it is sent at one content attempt."""
    if content_attempt:
        request = replace(request, seed=retry_seed(seed, content_attempt))
    return Ticket(request, content_attempt, seed)


@dataclass(slots=True)
class Counts:
    """What became of the requests of one run."""

    sent: int = 0
    retried: int = 0
    reused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def settle(self, reply: Reply) -> None:
        """Count one request that is done."""
        self.failed += reply.failure is not None
        self.prompt_tokens += reply.prompt_tokens or 0
        self.completion_tokens += reply.completion_tokens or 0


class Backlog:
    """Hands out tickets: returned ones first, then due retries, then fresh requests.

    A request that the journal already settles is counted as reused and never handed out, nor is
    one whose key was handed out before.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        index: JournalIndex,
        rules: RetryRules,
        progress: Progress,
    ) -> None:
        self.counts = Counts()
        self._index = index
        self._rules = rules
        self._progress = progress
        self._fresh: Iterator[Request] | None = iter(requests)
        self._returned: deque[Ticket] = deque()
        self._retries: list[tuple[float, int, Ticket]] = []
        self._retry_number = 0
        self._handed_out: set[bytes] = set()
        self._open: set[bytes] = set()
        self.looked_at = 0
        """Requests whose turn has come, those that were settled already included."""

    def take(self, now: float, *, looks: int) -> Ticket | None:
        """A ticket that can be sent now, found among the next `looks` fresh requests at most."""
        if self._returned:
            return self._returned.popleft()
        if self._retries and self._retries[0][0] <= now:
            return heapq.heappop(self._retries)[2]
        for _ in range(looks):
            if self._fresh is None:
                return None
            request = next(self._fresh, None)
            if request is None:
                self._fresh = None
                return None
            self.looked_at += 1
            if ticket := self._ticket(request):
                return ticket
        return None

    @property
    def has_fresh(self) -> bool:
        """Whether requests are left that nobody has looked at."""
        return self._fresh is not None or bool(self._returned)

    @property
    def next_due(self) -> float | None:
        """When the earliest retry is due; null when there is none."""
        return self._retries[0][0] if self._retries else None

    def is_open(self, request: Request) -> bool:
        """Whether a request was handed out and its outcome is not final yet."""
        return digest_of(request.key) in self._open

    def settle(self, ticket: Ticket, reply: Reply, now: float) -> None:
        """Take a final outcome of one content attempt; ask again where the rules say so."""
        attempt = ticket.content_attempt
        following = self._rules.after(reply.failure, reply.finish_reason, attempt)
        if following is not None:
            self.counts.retried += 1
            self.again(ticket.asked_again(following), now)
            return
        self._open.discard(digest_of(ticket.request.key))
        self.counts.settle(reply)
        tokens = (reply.prompt_tokens or 0) + (reply.completion_tokens or 0)
        self._progress.advance(done=1, failed=int(reply.failure is not None), tokens=tokens)

    def again(self, ticket: Ticket, due: float) -> None:
        """Send a ticket once more, not before `due`."""
        self._retry_number += 1
        heapq.heappush(self._retries, (due, self._retry_number, ticket))

    def put_first(self, ticket: Ticket) -> None:
        """Take back a ticket that was only looked at."""
        self._returned.appendleft(ticket)

    def bring_back(self, tickets: Iterable[Ticket]) -> None:
        """Take back what was on its way to a server that died; that sending does not count."""
        for ticket in tickets:
            ticket.attempts -= 1
            self._returned.append(ticket)
        while self._retries:
            self._returned.append(heapq.heappop(self._retries)[2])
        for ticket in self._returned:
            ticket.charged = 0

    def _ticket(self, request: Request) -> Ticket | None:
        attempt: int | None = 0
        digest = digest_of(request.key)
        standing = self._index.standing(request.key)
        if standing is not None:
            attempt = self._rules.next_attempt(standing, request.seed)
        if attempt is None or digest in self._handed_out:
            failed = standing is not None and standing.failure is not None
            self.counts.reused += 1
            self.counts.failed += failed
            self._progress.advance(done=1, reused=1, failed=int(failed))
            return None
        self._handed_out.add(digest)
        self._open.add(digest)
        return ticket_of(request, attempt, seed=request.seed)
