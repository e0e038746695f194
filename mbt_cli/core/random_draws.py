"""Random draws that are reproducible on every platform and Python version."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from mbt_cli.core.chat import Json
from mbt_cli.core.request_keys import canonical_json

T = TypeVar("T")
_WORD_BITS = 32


class Draws:
    """A stream of draws determined by a key: sha256 of the key and a counter.

    Example:
        >>> Draws("tinyhop", 0).below(10) == Draws("tinyhop", 0).below(10)
        True
    """

    def __init__(self, *key: Json) -> None:
        self._key = canonical_json(list(key))
        self._blocks = 0
        self._words: list[int] = []

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        if not self._words:
            self._refill()
        return (self._words.pop() * count) >> _WORD_BITS

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def chance(self, numerator: int, denominator: int) -> bool:
        """True with probability numerator / denominator."""
        return self.below(denominator) < numerator

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order (Fisher-Yates)."""
        mixed = list(items)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed

    def _refill(self) -> None:
        block = hashlib.sha256(self._key + self._blocks.to_bytes(8, "big")).digest()
        self._blocks += 1
        self._words = [int.from_bytes(block[at : at + 4], "big") for at in range(0, 32, 4)]
