"""What the requests of one cell to one model cost, counted while they are sent.

Before a request is sent, the most that it can cost is reserved: every byte of its messages may be
a token, and the reply may have as many as its limit. The reservation is replaced by what the reply
says. Where no reply says anything (a time-out, a broken connection, a kill), the reservation stays,
since the provider may have billed the request.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import orjson

from mbt_cli.core.prices import Allowance, Ledger, Price
from mbt_cli.inference.queue import PendingRequest, Reserved
from mbt_cli.inference.replies import PROMPT_TOO_LONG, SendResult

_TOKENS_OF_TURN = 32
"""Tokens of a chat template around one message, at most."""
_TOKENS_OF_CHAT = 512
"""Tokens that a chat template or a provider adds to every request, at most; more are learned."""
_UNKNOWN_LIMIT = 1 << 17
_POLL_SECONDS = 0.5
_SCHEMAS = ("response_format", "tools")
_NOT_BILLED = ("http_", "batch_", PROMPT_TOO_LONG, "no_reply", "no_verdict")
"""How failures begin that no provider bills."""


class Meter:
    """Reserves and counts; without a price it only counts.

    Args:
        price: What tokens of the model cost; None: nothing, or it is not known.
        ledger: Opens the record on the disk; called before the first request.
        allowance: Opens the part of the budget that this meter may spend, given the record; None
            without a budget.
    """

    def __init__(
        self,
        price: Price | None,
        ledger: Callable[[], Ledger],
        allowance: Callable[[Ledger], Allowance] | None,
    ) -> None:
        is_free = price is None or price.is_free
        self._rates = (0, 0, 0) if price is None else price.rates()
        self._most_each = max(self._rates[:2])
        self._open_ledger = ledger
        self._open_allowance = None if is_free else allowance
        self._ledger: Ledger | None = None
        self._allowance: Allowance | None = None
        self._spent = 0  # picos, what may have been billed included
        self._reserved = 0
        self._more = _TOKENS_OF_CHAT  # tokens of a prompt beyond its bytes
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waits(self) -> bool:
        """Whether requests wait until others leave enough of the budget."""
        return bool(self._waiting)

    def reserve(self, pending: PendingRequest, limit: int | None) -> bool:
        """Reserve the most that a request can cost; False if the budget does not allow it.

        Args:
            pending: The request.
            limit: The most tokens of its reply; None if nothing limits them.
        """
        if pending.reserved is not None:  # it was sent to a server that died
            self._lose(pending.reserved)
            pending.reserved = None
        ledger = self._ledger or self._opened()
        prompt, output, cost = found = self._most_of(pending, limit)
        allowance, held = self._allowance, self._spent + self._reserved
        if (
            allowance is not None
            and held + cost > allowance.limit
            and not allowance.raised(held, cost)
        ):
            return False
        self._reserved += cost
        pending.reserved = found
        ledger.hold(prompt, output)
        return True

    async def reserved(self, pending: PendingRequest, limit: int | None) -> None:
        """Wait until a request can be reserved.

        Raises:
            BudgetError: Nothing is in flight that could leave enough of the budget.
        """
        loop = asyncio.get_running_loop()
        while not self.reserve(pending, limit):
            allowance = self._allowance
            assert allowance is not None
            if not self._reserved and not allowance.can_change():
                raise self.refusal(pending, limit)
            news = loop.create_future()
            self._waiting.append(news)
            # a reply settled here tells at once; other processes are looked at now and then
            await asyncio.wait((news,), timeout=None if self._reserved else _POLL_SECONDS)
            if not news.done():
                self._waiting.remove(news)
        self._wake()

    def refusal(self, pending: PendingRequest, limit: int | None) -> Exception:
        """The error for a request that the budget does not allow."""
        assert self._allowance is not None
        return self._allowance.error(self._most_of(pending, limit)[2])

    def settle(self, pending: PendingRequest, result: SendResult) -> None:
        """Replace a reservation by what the request cost."""
        if (reserved := pending.reserved) is None:
            return
        pending.reserved = None
        reply = result.reply
        prompt, output = reply.prompt_tokens, reply.completion_tokens
        if prompt is not None and output is not None:
            self._reply(reserved, prompt, min(reply.cached_tokens or 0, prompt), output)
        elif not result.was_sent or (reply.failure or "").startswith(_NOT_BILLED):
            self._free(reserved)
        else:
            self._lose(reserved)
        if self._waiting:
            self._wake()

    def release(self, pending: PendingRequest) -> None:
        """Take the reservation of a request back that the provider refused."""
        if pending.reserved is not None:
            self._free(pending.reserved)
            pending.reserved = None

    def begin(self, tokens: int) -> Reserved:
        """Reserve the most tokens that a training at a provider can cost.

        Raises:
            BudgetError: The budget does not allow it.
        """
        ledger = self._ledger or self._opened()
        cost, held = tokens * self._rates[0], self._spent + self._reserved
        allowance = self._allowance
        if (
            allowance is not None
            and held + cost > allowance.limit
            and not allowance.raised(held, cost)
        ):
            raise allowance.error(cost)
        self._reserved += cost
        ledger.hold(tokens, 0)
        return tokens, 0, cost

    def end(self, reserved: Reserved | None, tokens: int | None) -> None:
        """Replace the reservation of a training by what it used; None: that is not known.

        A training that an earlier process began has no reservation here.
        """
        if tokens is not None:
            self._ledger = self._ledger or self._opened()
            self._reply(reserved or (0, 0, 0), tokens, 0, 0)
        elif reserved is not None:
            self._lose(reserved)

    def sync(self) -> None:
        """Write what changed to the disk."""
        if (ledger := self._ledger) is not None:
            ledger.sync()

    def close(self) -> None:
        """The cell asks nothing more."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = self._allowance = None
            self._spent = self._reserved = 0

    def _opened(self) -> Ledger:
        self._ledger = self._open_ledger()
        if self._open_allowance is not None:
            self._allowance = self._open_allowance(self._ledger)
        return self._ledger

    def _reply(self, reserved: Reserved, prompt: int, cached: int, output: int) -> None:
        most_prompt, most_output, cost = reserved
        if prompt > most_prompt:  # the provider counts more than was reserved
            self._more += prompt - most_prompt
        each, each_cached, each_output = self._rates
        self._reserved -= cost
        self._spent += (prompt - cached) * each + cached * each_cached + output * each_output
        if self._ledger is not None:
            self._ledger.replied((prompt, cached, output), most_prompt, most_output)

    def _lose(self, reserved: Reserved) -> None:
        prompt, output, cost = reserved
        self._reserved -= cost
        self._spent += cost
        if self._ledger is not None:
            self._ledger.lost(prompt, output)

    def _free(self, reserved: Reserved) -> None:
        prompt, output, cost = reserved
        self._reserved -= cost
        if self._ledger is not None:
            self._ledger.free(prompt, output)

    def _wake(self) -> None:
        """Let the request that waits longest look again."""
        while self._waiting:
            if not (news := self._waiting.popleft()).done():
                news.set_result(None)
                return

    def _most_of(self, pending: PendingRequest, limit: int | None) -> Reserved:
        """The most that a request can use: a token for each byte, and those around messages."""
        request, prompt = pending.request, self._more
        for turn in request.messages:
            text = turn["content"]
            prompt += _TOKENS_OF_TURN
            prompt += len(text) if text.isascii() else len(text.encode(errors="replace"))
        for name in _SCHEMAS:
            if name in request.body:
                prompt += len(orjson.dumps(request.body[name]))
        output = _UNKNOWN_LIMIT if limit is None else limit
        return prompt, output, prompt * self._most_each + output * self._rates[2]
