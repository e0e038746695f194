"""One model asked one cell's requests.

`ask` sends what the journal does not hold yet, and gives every request with what became of it to
whoever takes it, in the order of the requests and in bounded memory; `replies` reads the same
from the journal alone.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import polars as pl
import uvloop

from mbt_cli.core import rows
from mbt_cli.core.chat import Endpoint, Reply, Request, Responder
from mbt_cli.core.memory import return_freed_memory
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.progress import Progress
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import ArtifactError, BackendError
from mbt_cli.inference.client import BodyRules, open_client
from mbt_cli.inference.dispatcher import Dispatcher, Handover, Ledger, Take, outcome_of
from mbt_cli.inference.journal import JournalIndex, JournalWriter, record_of
from mbt_cli.inference.queue import Backlog, RetryRules, Ticket
from mbt_cli.inference.replies import (
    MalformedReplyError,
    Outcome,
    Sending,
    ServerDiedError,
    failed,
    reply_of,
)
from mbt_cli.inference.stopping import StopRequest, raising, stopping

_BATCH_ROWS = 5_000
_WANTED = [name for name in rows.REPLY if name != "messages"]


def import_rows(rows_parquet: Path, journal: Path) -> int:
    """Write the replies of an artifact into the journal, streaming.

    Doing it again replaces the first import. Rows without a request key (known by definition,
    never asked) are left out.

    Args:
        rows_parquet: A rows file that has the columns of `rows.REPLY`.
        journal: The cell's journal folder; made when it is not there.

    Returns:
        How many replies and failures were written.

    Raises:
        ArtifactError: The file cannot be read or the journal cannot be written.
    """
    name = sha256(str(rows_parquet.absolute()).encode()).hexdigest()[:12]
    target = journal / f"imported-{name}.jsonl"
    partial = target.with_suffix(".partial")
    count = 0
    try:
        journal.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for row in _rows(rows_parquet):
                file.write(_record(row))
                count += 1
        partial.replace(target)
    except (OSError, pl.exceptions.PolarsError) as error:
        partial.unlink(missing_ok=True)
        raise ArtifactError(
            f"cannot take over the replies of `{rows_parquet}` into `{journal}`: {error}"
        ) from error
    return count


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    lazy = pl.scan_parquet(path).select(_WANTED)
    height = lazy.select(pl.len()).collect().item()
    for start in range(0, height, _BATCH_ROWS):
        batch = lazy.slice(start, _BATCH_ROWS).collect()
        keyed = batch.filter(pl.col("request_key").is_not_null())
        yield from keyed.iter_rows(named=True)


def _record(row: dict[str, Any]) -> bytes:
    key = row.pop("request_key")
    text = row.pop("reply")
    if (row["failure"] or "").startswith(rows.GATE):
        row["failure"] = None  # the trace failed a gate, the reply is good
    return record_of(key, Reply(text=text, **row), None)


_LOOKS = 1_000


def answer_in_process(backlog: Backlog, ledger: Ledger, responder: Responder) -> None:
    """Work off the backlog one request after the other.

    A LookupError of the responder (it has nothing to say to this request) becomes the failure
    `no_reply`; any other exception is a bug and passes.
    """
    try:
        while True:
            ticket = backlog.take(float("inf"), looks=_LOOKS)
            if ticket is None and not backlog.has_fresh:
                return
            if ticket is not None:
                backlog.counts.sent += 1
                ticket.attempts += 1
                started = time.monotonic()
                outcome = _outcome(responder, ticket.request, ticket.attempts, started)
                ledger.keep(ticket, outcome.reply, started)
    finally:
        ledger.sync()


def _outcome(responder: Responder, request: Request, attempts: int, started: float) -> Outcome:
    try:
        completion = responder.respond(request)
    except LookupError as error:
        words = str(error.args[0]) if error.args else ""
        return failed("no_reply", words, Sending(request.seed, attempts), can_pass=False)
    sending = Sending(request.seed, attempts, time.monotonic() - started)
    try:
        return Outcome(reply_of(completion, sending))
    except MalformedReplyError as error:
        return failed("malformed_reply", str(error), sending, can_pass=False)


@dataclass(frozen=True)
class Sender:
    """How one run sends.

    Args:
        rules: How a request becomes a body.
        run: Concurrency and time limits.
        environment: Where a proxy may be named.
        request: Says which signal asked to stop.
        workers: Requests in flight at most.
    """

    rules: BodyRules
    run: RunSettings
    environment: Mapping[str, str]
    request: StopRequest
    workers: int

    def send_all(self, endpoint: Endpoint, backlog: Backlog, ledger: Ledger) -> None:
        """Work off the backlog.

        Raises:
            ServerDiedError: The server died; the backlog holds what is still to be sent.
            BackendError: No request can succeed, or the endpoint cannot be reached any more.
            ArtifactError: The journal cannot be written.
            Interrupted: SIGINT came.
            Stopped: SIGTERM or SIGUSR1 came.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._send_all(endpoint, backlog, ledger))

    async def _send_all(self, endpoint: Endpoint, backlog: Backlog, ledger: Ledger) -> None:
        async with open_client(endpoint, self.rules, self.run, self.environment) as client:
            dispatcher = Dispatcher(backlog, ledger, client, self.run, endpoint.alive)

            def stop() -> None:
                dispatcher.stop(self.request.drain_seconds(self.run.drain_seconds))

            with stopping(self.request, stop):
                await dispatcher.work_off(self.workers)
        if self.request.signal:
            raise self.request.error()


__all__ = ["Asked", "Asking", "ask", "import_rows", "replies"]


@dataclass(frozen=True)
class Asking:
    """One model asked one cell's requests.

    Args:
        requests: Gives all requests anew at each call, lazily and in the same order.
        total: How many those are, where that is known.
        open: The backend's `open`; entered only when something has to be sent.
        place: Where its server may put things.
        max_tokens: Tokens a reply may have; `rest` is what the context leaves.
        run: How it is run on this machine.
        retry_on: Finish reasons (`length`) and failures (`empty`) asked again with a new seed.
        retry_max_tokens: Token limit of such a second try; null keeps the first one's.
        content_attempts: Times one request is asked for its content at most.
        retry_failed: Ask again for every failure of an earlier run, not only passing ones.
        sends_seed: Whether the sampling is seedable.
        model_id: The endpoint's name for the model, for backends that do not say one.
    """

    requests: Callable[[], Iterable[Request]]
    total: int | None
    open: Callable[[ServerPlace], AbstractContextManager[Endpoint | Responder]]
    place: ServerPlace
    max_tokens: int | Literal["rest"]
    run: RunSettings
    retry_on: tuple[str, ...] = ()
    retry_max_tokens: int | None = None
    content_attempts: int = 3
    retry_failed: bool = False
    sends_seed: bool = True
    model_id: str = ""

    @property
    def retry_rules(self) -> RetryRules:
        """Which outcomes are asked for again."""
        return RetryRules(self.retry_on, self.content_attempts, self.retry_failed)

    @property
    def body_rules(self) -> BodyRules:
        """How a request becomes a body."""
        return BodyRules(self.max_tokens, self.retry_max_tokens, self.sends_seed, self.model_id)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one `ask` did.

    Args:
        sent: Requests that went out, each time they did.
        retried: Of those, the ones that were asked again, for transport or content.
        reused: Requests whose reply was there already.
        failed: Requests that end with a failure, reused ones included.
        prompt_tokens: Of the replies that came in this run.
        completion_tokens: Likewise.
        restarts: Times the server died and was started again.
        seconds: From the first look at the journal to the last reply.
        version: What the server says it is; null when nothing was sent.
        flags: The flags it was started with.
    """

    sent: int = 0
    retried: int = 0
    reused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    restarts: int = 0
    seconds: float = 0.0
    version: str | None = None
    flags: tuple[str, ...] = ()


def ask(
    asking: Asking,
    journal: Path,
    progress: Progress,
    *,
    writer: str = "0",
    take: Take | None = None,
) -> Asked:
    """Send what the journal does not hold, and keep every reply the moment it arrives.

    SIGINT, SIGTERM and SIGUSR1 stop it in order while it runs in the main thread.

    Args:
        asking: What is asked.
        journal: The cell's journal folder; made when it is not there.
        progress: Told of every row that is done.
        writer: Name of this writer's own file; array tasks each have theirs.
        take: Given every request with what became of it, in the requests' order: each as soon as
            all before it are settled, while later ones are still in flight.

    Raises:
        BackendError: The server did not start, died too often, or refuses every request.
        ArtifactError: The journal cannot be written.
        Interrupted: SIGINT came; everything that had arrived is kept.
        Stopped: SIGTERM or SIGUSR1 came; everything that had arrived is kept.
    """
    request = StopRequest()
    with (
        raising(request),
        JournalWriter(journal, writer) as file,
        JournalIndex(journal) as index,
    ):
        if index.damaged:
            progress.note(f"{index.damaged} damaged lines of `{journal}` are asked again")
        backlog = Backlog(asking.requests(), index, asking.retry_rules, progress)
        handover = None
        if take is not None:
            handover = Handover(asking.requests(), backlog, index, take)
        ledger = Ledger(backlog, file, index, handover)
        asked = _Run(asking, backlog, ledger, progress, request).work_off()
        if handover is not None:
            handover.finish()
        return asked


def replies(asking: Asking, journal: Path) -> Iterator[tuple[Request, Reply]]:
    """Every request with what became of it, in the order of the requests.

    A request that was never answered has the failure `not_asked`.
    """
    with JournalIndex(journal) as index:
        for request in asking.requests():
            yield request, outcome_of(request, index)


class _Run:
    """One `ask`: opens the endpoint, again when it dies, until the backlog is empty."""

    def __init__(
        self,
        asking: Asking,
        backlog: Backlog,
        ledger: Ledger,
        progress: Progress,
        request: StopRequest,
    ) -> None:
        self._asking = asking
        self._backlog = backlog
        self._ledger = ledger
        self._progress = progress
        self._request = request
        self._restarts = 0
        self._source: Endpoint | Responder | None = None

    def work_off(self) -> Asked:
        started = time.monotonic()
        while (first := self._first()) is not None:
            self._backlog.put_first(first)
            try:
                self._once()
            except ServerDiedError as error:
                self._restart_or_raise(error)
        return self._asked(time.monotonic() - started)

    def _first(self) -> Ticket | None:
        """The next ticket, found before anything is started for it."""
        while True:
            ticket = self._backlog.take(float("inf"), looks=1_000)
            if ticket is not None or not self._backlog.has_fresh:
                return ticket

    def _once(self) -> None:
        with self._asking.open(self._asking.place) as source:
            self._source = source
            if isinstance(source, Responder):
                answer_in_process(self._backlog, self._ledger, source)
            else:
                self._send(source)
                return_freed_memory()

    def _send(self, endpoint: Endpoint) -> None:
        # the connections and their event loop load only where something is sent

        asking = self._asking
        sender = Sender(
            rules=asking.body_rules,
            run=asking.run,
            environment=asking.place.environment,
            request=self._request,
            workers=min(asking.run.concurrency, asking.total or asking.run.concurrency),
        )
        sender.send_all(endpoint, self._backlog, self._ledger)

    def _restart_or_raise(self, error: ServerDiedError) -> None:
        self._restarts += 1
        if self._restarts > self._asking.run.server_restarts:
            raise BackendError(
                f"the server died {self._restarts} times in this cell; the last time: {error}",
                hint=error.hint,
            ) from error
        self._progress.note(f"the server died and is started again: {error}")

    def _asked(self, seconds: float) -> Asked:
        counts, source = self._backlog.counts, self._source
        return Asked(
            sent=counts.sent,
            retried=counts.retried,
            reused=counts.reused,
            failed=counts.failed,
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens,
            restarts=self._restarts,
            seconds=seconds,
            version=source.version if source else None,
            flags=source.flags if isinstance(source, Endpoint) else (),
        )
