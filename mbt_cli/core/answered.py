"""What judges may read beside one rollout: other answers, graded ones, and what to ask with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from mbt_cli.core.chat import Json
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.templates import Template

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Answered:
    """What a policy answered to a question.

    Args:
        policy: The model's name.
        answer: The answer that the benchmark finds in the reply; empty if there is none.
        reply: The reply outside its thinking.
    """

    question_id: str
    policy: str
    question: str
    answer: str
    reply: str


@dataclass(frozen=True, slots=True)
class Graded:
    """A rollout with the points that a judge gave it.

    Args:
        reasoning: Its reasoning and reply.
        points: The mean of the votes that were read.
    """

    question_id: str
    question: str
    reasoning: str
    points: float


@dataclass(frozen=True, slots=True)
class Asking:
    """What the requests of one verdict are made with.

    Args:
        templates: `judge`, the judge's own, and those of its fields in `Judge.prompts`.
        body: Fields of the body of the request that is answered with the verdict.
        vote: Number of the vote, from 0.
        draw: The same stream of draws in every run, for the same study seed and arguments.
    """

    templates: Mapping[str, Template]
    body: Mapping[str, Json]
    vote: int
    draw: Callable[..., Draws]


@dataclass(frozen=True, slots=True)
class Others:
    """What a judge may read beside one rollout.

    Args:
        evaluated: The answers of the judged policy to all questions, this one included.
        peers: Answers of other policies to the same questions.
        judge_model: Name of the judge model.
        draw: The same stream of draws in every run, for the same study seed and arguments.
    """

    evaluated: Sequence[Answered]
    peers: Sequence[Answered]
    judge_model: str
    draw: Callable[..., Draws]
    made: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """The result of `make`, computed on the first call with `name` and kept for later ones."""
        if name not in self.made:
            self.made[name] = make()
        return cast(Made, self.made[name])
