"""Prices of tokens, and what requests cost: exact arithmetic in whole numbers.

Money is a whole number of `PICOS` of the currency: a price per million tokens with six decimals is
a whole number of them per token, so that sums over any number of requests have no rounding error.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Annotated, Protocol

from pydantic import Field

from mbt_cli.core.number_text import number_text, significant_decimals
from mbt_cli.core.plugin import Settings

PICOS = 10**12
"""Picos in one unit of a currency."""

_PerMillion = Annotated[float, Field(ge=0, le=1_000_000, strict=True)]


@dataclass(frozen=True, slots=True)
class Used:
    """Requests and their tokens.

    Args:
        requests: Requests that were paid for.
        input: Prompt tokens, cached ones included.
        cached: Of those, tokens that the provider's prompt cache served.
        output: Tokens of replies, reasoning included.
    """

    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(
            self.requests + other.requests,
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
        )


NOTHING = Used()


class Price(Settings):
    """`[models.X] price`: money per million tokens, in the currency of `[study]`."""

    input: _PerMillion
    """Price of a million prompt tokens."""
    output: _PerMillion
    """Price of a million tokens of replies, reasoning included."""
    cached: _PerMillion | None = None
    """Price of a million prompt tokens that the provider's prompt cache serves. Default: that of
    `input`."""
    training: _PerMillion | None = None
    """Price of a million tokens that the provider trains, each epoch counted: method `provider`."""

    @property
    def is_free(self) -> bool:
        """Whether no request costs anything."""
        return not (self.input or self.output or self.cached)

    def shared(self, share: float) -> "Price":
        """A share of this price, for requests alone.

        Example:
            >>> Price(input=2.0, output=8.0).shared(0.5)
            Price(input=1.0, output=4.0, cached=None, training=None)
        """
        cached = None if self.cached is None else self.cached * share
        return Price(input=self.input * share, output=self.output * share, cached=cached)

    def of_training(self) -> "Price | None":
        """The price of trained tokens, as the price of a prompt; None if there is none."""
        return None if self.training is None else Price(input=self.training, output=0.0)

    def rates(self) -> tuple[int, int, int]:
        """Picos for a token of the prompt, of its cached part, and of the reply."""
        cached = self.input if self.cached is None else self.cached
        return _per_token(self.input), _per_token(cached), _per_token(self.output)

    def of(self, used: Used) -> int:
        """What requests cost, in picos.

        Example:
            >>> price = Price(input=2.0, output=8.0, cached=0.5)
            >>> price.of(Used(requests=1, input=1_000, cached=600, output=100)) / PICOS
            0.0019
        """
        each, each_cached, each_output = self.rates()
        cached = min(used.cached, used.input)
        return (used.input - cached) * each + cached * each_cached + used.output * each_output

    def at_most(self, input_tokens: int, output_tokens: int) -> int:
        """The most that a request with so many tokens costs, in picos, whatever is cached."""
        each, each_cached, each_output = self.rates()
        return input_tokens * max(each, each_cached) + output_tokens * each_output


@lru_cache(maxsize=1024)
def _per_token(per_million: float) -> int:
    """Picos a token; exact decimals take longer than all else that is done for a request."""
    return picos_of(per_million) // 1_000_000


def picos_of(amount: float) -> int:
    """An amount of money in picos, rounded up to a millionth of the currency.

    Example:
        >>> picos_of(0.1) + picos_of(0.2) == picos_of(0.3)
        True
    """
    millionths = (Decimal(repr(float(amount))) * 1_000_000).to_integral_value(ROUND_CEILING)
    return int(millionths) * (PICOS // 1_000_000)


def money_text(picos: int, currency: str) -> str:
    """An amount of money as text: two decimals, more for less than 1 so that two digits show.

    Example:
        >>> money_text(12_345 * PICOS // 1_000, "USD"), money_text(PICOS // 800, "EUR")
        ('12.35 USD', '0.0013 EUR')
        >>> money_text(0, "USD"), money_text(PICOS * 1_234_567, "JPY")
        ('0.00 USD', '1234567.00 JPY')
    """
    amount = picos / PICOS
    decimals = 2 if amount >= 1 else min(6, max(2, significant_decimals(amount, 2)))
    return f"{number_text(amount, decimals=decimals)} {currency}"


def training_of(model: str) -> str:
    """The name under which the training of a model is counted and priced.

    Example:
        >>> training_of("small")
        'small (training)'
    """
    return f"{model} (training)"


class Ledger(Protocol):
    """The record of what the requests of one cell to one model cost; it outlives the process."""

    def hold(self, prompt: int, output: int) -> None:
        """Reserve tokens of a prompt and its reply, before the request is sent."""

    def replied(self, used: tuple[int, int, int], prompt: int, output: int) -> None:
        """Replace a reservation by prompt, cached and output tokens that a reply has used."""

    def lost(self, prompt: int, output: int) -> None:
        """Nothing says what a request has used: its reservation may have been billed."""

    def free(self, prompt: int, output: int) -> None:
        """Take a reservation back: the request was not billed."""

    def sync(self) -> None:
        """Write what changed to the disk, and show that this process lives."""

    def close(self) -> None:
        """Nothing more is sent: reservations that are left may have been billed."""


class Allowance(Protocol):
    """The part of a study's budget that one ledger may spend."""

    limit: int
    """What it may spend in all, in picos."""

    def raised(self, held: int, need: int) -> bool:
        """Ask for more; whether `need` picos can be spent now.

        Args:
            held: What its ledger has spent and reserved, in picos.
            need: The most that the next request costs.
        """

    def can_change(self) -> bool:
        """Whether other processes may give back what they have reserved."""

    def error(self, need: int) -> Exception:
        """The error that says that the budget is reached."""
