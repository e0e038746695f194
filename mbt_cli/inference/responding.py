"""Requests answered in this process: the same backlog, journal and rules, without HTTP."""

import time

from mbt_cli.core.chat import Request, Responder
from mbt_cli.core.replies import MalformedReplyError, Sending, reply_of
from mbt_cli.inference.backlog import Backlog
from mbt_cli.inference.ledger import Ledger
from mbt_cli.inference.outcomes import Outcome, failed

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
