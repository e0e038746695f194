"""Supervised fine-tuning on rollouts, traces or solutions."""

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal

from mbt_cli.core.chat import Json
from mbt_cli.core.findings import TRAINING
from mbt_cli.core.recipe import Recipe
from mbt_cli.interfaces import Trainer
from mbt_cli.trainers.known_keys import KEEPS_WEIGHTS, known_keys


class SFT(Trainer):
    """Supervised fine-tuning: the model learns to reply as the data does."""

    module: ClassVar[str] = "mbt_cli.training.sft"
    prepares: ClassVar[str | None] = "mbt_cli.training.sft_rows"
    packages: ClassVar[Collection[str]] = TRAINING
    learns_from: ClassVar[Mapping[str, str]] = {"data": "the stages to train on"}

    kind: Literal["sft"] = "sft"
    """Names the method in a preset."""

    @classmethod
    def trainer_keys(cls) -> Mapping[str, str]:
        keys: Mapping[str, str] = known_keys()["trainer"]["sft"]
        return keys

    @classmethod
    def keeps_weights(cls) -> Collection[str]:
        return KEEPS_WEIGHTS

    def spec(self, recipe: Recipe) -> dict[str, Json]:
        # part of every recipe when its fingerprints were defined
        return {**super().spec(recipe), "rewards": {}, "reward_words": 0}
