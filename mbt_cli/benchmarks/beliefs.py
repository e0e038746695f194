"""What benchmarks about beliefs share: options in an order by hash, and splits by hash.

Their questions may have options without a known outcome, or no options at all. Such questions have
no answer: they carry what needs none, such as beliefs and how they move.
"""

import hashlib
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Annotated, ClassVar

from pydantic import Field

from mbt_cli.benchmarks import records
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.option import OptionVerifier

YES_NO = ("Yes", "No")
_TRAIN = "train"


class BeliefBenchmark(Benchmark):
    """Questions on which a model has beliefs."""

    shuffle_options: bool = False
    """Order the options by `shuffle_seed` and the id of the question."""
    shuffle_seed: int = 0
    """Seed of `shuffle_options`."""
    train_share: Annotated[float | None, Field(gt=0, lt=1)] = None
    """Share of the questions, chosen by the hash of their id, that belongs to the split `train`;
    every other split has the rest. Name the same file for both splits."""

    verifier: ClassVar[Verifier] = OptionVerifier()
    official: ClassVar[None] = None
    has_documents: ClassVar[bool] = False
    has_answers: ClassVar[bool] = False
    prompt: ClassVar[str] = "belief_steps"

    def has(self, record: Mapping[str, Json], split: str) -> bool:
        if self.train_share is None:
            return True
        return (_fraction(self.question(record).question_id) < self.train_share) == (
            split == _TRAIN
        )

    def with_options(
        self,
        question_id: str,
        parts: Sequence[str],
        options: Sequence[str],
        resolution: Sequence[float],
        metadata: Mapping[str, Json],
        question_type: str | None = None,
    ) -> Question:
        """A question whose options stand below its text as `A. ...`.

        Args:
            question_id: Its id.
            parts: The parts of its text; an empty line is put between two.
            options: In the order of the data.
            resolution: How far each option came true; empty if that is not known.
            metadata: Other fields of the record.
            question_type: Kind of question within the benchmark, for breakdowns.

        Raises:
            ValueError: Two options are equal, there are fewer than 2 or more than 26, or the
                outcome is not a share for each option.
        """
        if not 2 <= len(set(options)) == len(options) <= len(ascii_uppercase):
            raise ValueError(f"needs 2 to 26 different options, and has {list(options)}")
        is_whole = abs(sum(resolution) - 1) <= 1e-6 and min(resolution, default=-1) >= 0
        if resolution and not (is_whole and len(resolution) == len(options)):
            raise ValueError(f"the outcome {list(resolution)} is not a share for each option")
        order = list(range(len(options)))
        if self.shuffle_options:
            order.sort(key=lambda number: _digest(f"{self.shuffle_seed}\n{question_id}\n{number}"))
        shown = [options[number] for number in order]
        outcome = [float(resolution[number]) for number in order] if resolution else []
        lines = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, shown, strict=False)]
        right = outcome.index(1.0) if 1.0 in outcome else None
        return Question(
            question_id=question_id,
            question="\n\n".join([*(part for part in parts if part), "\n".join(lines)]),
            answer="" if right is None else ascii_uppercase[right],
            answer_aliases=() if right is None else (shown[right],),
            question_type=question_type,
            metadata=metadata,
            options=tuple(shown),
            resolution=tuple(outcome),
        )


class OpenBenchmark(BeliefBenchmark):
    """Questions without options and without an answer."""

    prompt: ClassVar[str] = "as_is"


def open_question(
    question_id: str | None, text: str, metadata: Mapping[str, Json], kind: str | None = None
) -> Question:
    """A question without options and without an answer; an id is made of its text if it has none.

    Example:
        >>> open_question("q", "What is it like?", {}).answer
        ''
    """
    name = question_id or records.hashed_id(text)
    return Question(
        question_id=name, question=text, answer="", question_type=kind, metadata=metadata
    )


def one_hot(right: int | None, count: int) -> tuple[float, ...]:
    """The resolution of a question of which one option came true; empty if none is known.

    Example:
        >>> one_hot(1, 2), one_hot(None, 2)
        ((0.0, 1.0), ())
    """
    return () if right is None else tuple(float(number == right) for number in range(count))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _fraction(question_id: str) -> float:
    """A number from 0 to 1 by the hash of an id."""
    return int(_digest(question_id)[:13], 16) / 16**13
