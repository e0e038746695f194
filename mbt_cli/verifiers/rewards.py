"""Rewards of reinforcement learning: one completion to a number, higher is better."""

import re
from collections.abc import Mapping
from typing import Protocol

from mbt_cli.core.questions import Question
from mbt_cli.core.verifier import Verifier
from mbt_cli.verifiers import text

_WELL_FORMED = re.compile(
    r"^\s*+(?:<think>.*?</think>)?[^<]*<answer>[^<]+</answer>\s*$", re.DOTALL | re.IGNORECASE
)


class Reward(Protocol):
    """A reward; higher is better."""

    def __call__(
        self, completion: str, question: Question, *, verifier: Verifier, words: int
    ) -> float:
        """The reward of one completion.

        Args:
            completion: The reply, thinking included.
            question: The question with its gold answer and aliases.
            verifier: The benchmark's own.
            words: Words beyond which `length` is 0.
        """


def exact_match(completion: str, question: Question, *, verifier: Verifier, words: int) -> float:
    """Value of the benchmark's verifier for the completion, in [0, 1]."""
    return verifier.check(completion, question).value


def f1_score(completion: str, question: Question, *, verifier: Verifier, words: int) -> float:
    """Best F1 of words between the tagged answer and the gold answer or an alias, in [0, 1]."""
    references = (question.answer, *question.answer_aliases)
    return text.f1_score(text.extract_answer(completion), references)


def well_formed(completion: str, question: Question, *, verifier: Verifier, words: int) -> float:
    """1 if the completion ends in its only answer pair, after at most one closed think block."""
    return float(_WELL_FORMED.match(completion) is not None)


def length(completion: str, question: Question, *, verifier: Verifier, words: int) -> float:
    """1 for an empty completion, falling linearly to 0 at `words` words."""
    return max(0.0, 1.0 - len(completion.split()) / words) if words else 0.0


REWARDS: Mapping[str, Reward] = {
    "f1_score": f1_score,
    "exact_match": exact_match,
    "format": well_formed,
    "length": length,
}
"""Every reward by its name in a manifest."""

VERIFIED_REWARDS = frozenset({"exact_match"})
"""Those that depend on the benchmark's verifier."""
