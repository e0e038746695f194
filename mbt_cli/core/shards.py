"""A shard: one of several processes that share the requests of a cell."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Shard:
    """Number `number`, from 1, of `of` shards."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def share(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """This shard's items: every `of`-th one, so that shards are equally long.

        Example:
            >>> list(Shard(2, 3).share("abcdefgh"))
            ['b', 'e', 'h']
        """
        return islice(items, self.number - 1, None, self.of)


def parse_shard(text: str) -> Shard:
    """`3/8`: the third of eight.

    Raises:
        ValueError: It is not `NUMBER/OF` with 1 <= NUMBER <= OF.
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isascii() and number.isdigit() and of.isascii() and of.isdigit()):
        raise ValueError(f"`{text}` is no shard: write `3/8` for the third of eight")
    shard = Shard(int(number), int(of))
    if not 1 <= shard.number <= shard.of:
        raise ValueError(f"`{text}` is no shard: the first number is 1 to {shard.of}")
    return shard
