"""Writes down what becomes of each ticket: journal, counts, progress, content retries."""

from mbt_cli.core.chat import Reply
from mbt_cli.core.progress import Progress
from mbt_cli.inference.backlog import Backlog, RetryRules, Ticket
from mbt_cli.inference.journal import JournalWriter


class Ledger:
    """The one who settles tickets, for every way of asking."""

    def __init__(
        self, backlog: Backlog, journal: JournalWriter, rules: RetryRules, progress: Progress
    ) -> None:
        self._backlog = backlog
        self._journal = journal
        self._rules = rules
        self._progress = progress

    def sync(self) -> None:
        """Wait until the journal is on the disk."""
        self._journal.sync()

    def keep(self, ticket: Ticket, reply: Reply, now: float) -> None:
        """Keep a final outcome of one content attempt; ask again where the rules say so."""
        attempt = ticket.content_attempt
        self._journal.append(ticket.request.key, reply, attempt)
        following = self._rules.after(reply.failure, reply.finish_reason, attempt)
        if following is not None:
            self._backlog.counts.retried += 1
            self._backlog.again(ticket.asked_again(following), now)
            return
        self._backlog.counts.settle(reply)
        tokens = (reply.prompt_tokens or 0) + (reply.completion_tokens or 0)
        self._progress.advance(done=1, failed=int(reply.failure is not None), tokens=tokens)
