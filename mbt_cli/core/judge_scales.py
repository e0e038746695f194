"""Scales of verdicts: a vote as a number, and how several votes become one value."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import polars as pl

Combine = Literal["majority", "mean", "median", "min", "max"]
"""How several votes become one value. `majority`: 1 if more than half of the votes are 1, 0 if
fewer than half are, no value on a tie."""


CORRECTNESS = "correctness"
"""The quantity of judges that grade the final answer."""

BELIEF = "beliefs"
"""The quantity of judges that give a probability to each option."""

LIKELIHOOD = "likelihoods"
"""The quantity of judges that give log-probabilities of texts."""

INVESTIGATIONS = "investigations"
"""The quantity of judges that look into the claims of a reasoning."""

UPLIFT = "uplift"
"""The quantity of judges that give log-probabilities of what investigations found."""

VERIFIED = "verified"
"""The quantity of verdicts that a verifier gives."""

POINTS = "points"
"""The quantity of judges that give points to a proof."""


_WORDS = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "right", "correct"), 1.0),
    **dict.fromkeys(("0", "0.0", "false", "no", "wrong", "incorrect"), 0.0),
}
"""What people write for right and wrong."""


@dataclass(frozen=True)
class Scale(ABC):
    """The values that a judge's verdict can take.

    Args:
        column: The verdict's column that holds the value.
        low: The smallest number that a vote can be.
        high: The largest.
        combine: How several votes on one rollout become one value.
    """

    is_ordered: ClassVar[bool] = False
    """Whether a larger difference of two values is a larger disagreement."""

    column: str
    low: float = field(default=0.0, kw_only=True)
    high: float = field(default=1.0, kw_only=True)
    combine: Combine = field(default="majority", kw_only=True)

    @abstractmethod
    def number(self) -> pl.Expr:
        """A vote as a number from `low` to `high`; null if the verdict has no value."""

    def share(self) -> pl.Expr:
        """A vote as a share of the scale, from 0 to 1."""
        if (self.low, self.high) == (0, 1):
            return self.number()
        return (self.number() - self.low) / (self.high - self.low)

    def ordered(self, values: Iterable[str]) -> list[str]:
        """Values of the column, as text, in the order of the scale."""
        return sorted(values)

    def read_label(self, label: str) -> float | None:
        """The verdict of a person as a share of the scale; None if it is none.

        Example:
            >>> [YesNo("hit").read_label(label) for label in ("Right", "0", "maybe")]
            [1.0, 0.0, None]
        """
        return _WORDS.get(label.strip().casefold())

    def label_words(self) -> str:
        """What `read_label` reads, for messages."""
        return ", ".join(f"`{word}`" for word in _WORDS if "." not in word)


@dataclass(frozen=True)
class YesNo(Scale):
    """A Boolean column: 1 for true, 0 for false.

    Args:
        if_null: Value of a null in a verdict that did not fail; None: no value.
    """

    if_null: bool | None = None

    def number(self) -> pl.Expr:
        value = pl.col(self.column)
        return (value if self.if_null is None else value.fill_null(self.if_null)).cast(pl.Float64)


@dataclass(frozen=True)
class Labels(Scale):
    """A text column with one of several labels: 1 for the right one, 0 for all others.

    Example:
        >>> Labels("grade", ("PASS", "FAIL"), right="PASS").ordered(["FAIL", "PASS"])
        ['PASS', 'FAIL']
    """

    labels: tuple[str, ...]
    right: str

    def number(self) -> pl.Expr:
        return (pl.col(self.column) == self.right).cast(pl.Float64)

    def read_label(self, label: str) -> float | None:
        own = {one.casefold(): float(one == self.right) for one in self.labels}
        found = own.get(label.strip().casefold())
        return super().read_label(label) if found is None else found

    def label_words(self) -> str:
        own = ", ".join(f"`{label}`" for label in self.labels)
        return f"{own}, {super().label_words()}"

    def ordered(self, values: Iterable[str]) -> list[str]:
        known = {label: place for place, label in enumerate(self.labels)}
        return sorted(values, key=lambda value: (known.get(value, len(known)), value))


@dataclass(frozen=True)
class Points(Scale):
    """A numeric column from `low` to `high`: points 0..7, or a share 0..1.

    Example:
        >>> Points("points", high=10).ordered(["10", "9", "0"])
        ['0', '9', '10']
    """

    is_ordered: ClassVar[bool] = True

    combine: Combine = field(default="mean", kw_only=True)

    def number(self) -> pl.Expr:
        return pl.col(self.column).cast(pl.Float64)

    def read_label(self, label: str) -> float | None:
        try:
            points = float(label)
        except ValueError:
            return None
        inside = self.low <= points <= self.high
        return (points - self.low) / (self.high - self.low) if inside else None

    def label_words(self) -> str:
        return f"the numbers from {self.low:g} to {self.high:g}"

    def ordered(self, values: Iterable[str]) -> list[str]:
        return sorted(values, key=float)
