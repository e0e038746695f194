"""Rewards of reinforcement training: one completion and its references to a number."""

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from mbt_cli.verifiers import text

_WELL_FORMED = re.compile(
    r"^\s*(?:<think>.*?</think>)?[^<]*<answer>[^<]+</answer>\s*$", re.DOTALL | re.IGNORECASE
)


class Reward(Protocol):
    """A reward; higher is better."""

    def __call__(self, completion: str, references: Sequence[str], *, words: int) -> float:
        """The reward of one completion.

        Args:
            completion: The reply, thinking included.
            references: Gold answer and aliases.
            words: Words beyond which `length` gives nothing.
        """


def f1_score(completion: str, references: Sequence[str], *, words: int) -> float:
    """Best token F1 of the extracted answer over gold answer and aliases, in [0, 1].

    Example:
        >>> f1_score("<answer>New York City</answer>", ["York", "NYC"], words=0)
        0.5
    """
    return text.f1_score(text.extract_answer(completion), references)


def exact_match(completion: str, references: Sequence[str], *, words: int) -> float:
    """1 where the extracted answer equals a reference, both normalised.

    Example:
        >>> exact_match("<answer>The Thames.</answer>", ["thames"], words=0)
        1.0
    """
    return text.exact_match(text.extract_answer(completion), references)


def well_formed(completion: str, references: Sequence[str], *, words: int) -> float:
    """1 where the reply ends in one answer pair, behind at most one closed think block.

    Example:
        >>> well_formed("<think>so</think> It is <answer>Oslo</answer>", [], words=0)
        1.0
        >>> well_formed("<answer>Oslo</answer> or <answer>Rome</answer>", [], words=0)
        0.0
    """
    return float(_WELL_FORMED.match(completion) is not None)


def length(completion: str, references: Sequence[str], *, words: int) -> float:
    """1 for nothing, falling evenly to 0 at `words` words.

    Example:
        >>> length("one two three", [], words=4)
        0.25
    """
    return max(0.0, 1.0 - len(completion.split()) / words) if words else 0.0


REWARDS: Mapping[str, Reward] = {
    "f1_score": f1_score,
    "exact_match": exact_match,
    "format": well_formed,
    "length": length,
}
"""What has been added, by the name that a manifest uses."""
