"""Writes down what becomes of each ticket, for every way of asking."""

from mbt_cli.core.chat import Reply
from mbt_cli.inference.backlog import Backlog, Ticket
from mbt_cli.inference.handover import Handover
from mbt_cli.inference.journal import JournalIndex, JournalWriter


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
