"""GRPO: reinforcement learning from rewards of the model's own replies."""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.names import nearest
from mbt_cli.core.recipe import Recipe
from mbt_cli.interfaces import Trainer
from mbt_cli.trainers.known_keys import KEEPS_WEIGHTS, known_keys
from mbt_cli.verifiers.rewards import REWARDS, VERIFIED_REWARDS


class GRPO(Trainer):
    """Group relative policy optimization: the model learns from rewards of its own replies."""

    module: ClassVar[str] = "mbt_cli.training.grpo"
    learns_from: ClassVar[Mapping[str, str]] = {
        "questions": 'the questions to ask, such as { benchmark = "NAME", split = "train" }'
    }

    kind: Literal["grpo"] = "grpo"
    """Names the method in a preset."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """Rewards with their weights."""
    reward_words: int = Field(default=0, ge=0)
    """Number of words from which on the reward `length` is 0."""

    @classmethod
    def trainer_keys(cls) -> Mapping[str, str]:
        keys: Mapping[str, str] = known_keys()["trainer"]["grpo"]
        return keys

    @classmethod
    def keeps_weights(cls) -> Collection[str]:
        return KEEPS_WEIGHTS

    def uses_verifier(self) -> bool:
        return bool(VERIFIED_REWARDS & self.rewards.keys())

    def problems(self, recipe: Recipe) -> Iterator[tuple[str, str]]:
        for name in self.rewards:
            if name not in REWARDS:
                yield "reward", f"no reward `{name}`; {nearest(name, REWARDS)}"
        if not self.rewards:
            yield "reward", f"is required; {nearest('', REWARDS)}"
        if "length" in self.rewards and not self.reward_words:
            yield "recipe.reward_words", "is required for the reward `length`"
