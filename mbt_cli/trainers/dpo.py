"""DPO: the model learns to prefer the better of two replies to one question."""

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Literal

from mbt_cli.core.chat import Json
from mbt_cli.core.findings import TRAINING
from mbt_cli.core.names import nearest
from mbt_cli.core.recipe import Recipe
from mbt_cli.interfaces import Trainer
from mbt_cli.trainers.known_keys import KEEPS_WEIGHTS, known_keys

_LOSSES = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot"),
    *("aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)
"""Values of `loss_type` that TRL 1.16 knows: it declares them as any text."""
_OF_DIFFERENCES = frozenset(
    {"sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop", "sft"}
)
"""Losses that go with another `f_divergence_type` than the usual one."""
_SORTING = frozenset({"aot", "aot_unpaired"})
_DIVERGENCES = ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence")
_LOGGED: Mapping[str, str] = {
    "reward_margin": "rewards/margins",
    "reward_accuracy": "rewards/accuracies",
    "chosen_reward": "rewards/chosen",
    "rejected_reward": "rewards/rejected",
    "chosen_logp": "logps/chosen",
    "rejected_logp": "logps/rejected",
    "entropy": "entropy",
}


class DPO(Trainer):
    """Direct preference optimization: the best reply to a question against the worst one.

    The reference is the model that the training starts from. With an adapter, it is the same model
    with the adapter switched off.
    """

    module: ClassVar[str] = "mbt_cli.training.dpo"
    prepares: ClassVar[str | None] = "mbt_cli.training.dpo_rows"
    packages: ClassVar[Collection[str]] = TRAINING
    learns_from: ClassVar[Mapping[str, str]] = {
        "data": "the rollouts with the replies",
        "pick": 'the values of the replies, such as { scores = "STAGE", metric = "brier" }',
    }
    pairs: ClassVar[bool] = True

    kind: Literal["dpo"] = "dpo"
    """Names the method in a preset."""

    @classmethod
    def trainer_keys(cls) -> Mapping[str, str]:
        keys: Mapping[str, str] = known_keys()["trainer"]["dpo"]
        return keys

    @classmethod
    def keeps_weights(cls) -> Collection[str]:
        return KEEPS_WEIGHTS | {"precompute_ref_batch_size"}

    def spec(self, recipe: Recipe) -> dict[str, Json]:
        # its loss is a mean over the pairs that one device computes at once
        return {**super().spec(recipe), "device_batch_size": recipe.device_batch_size}

    def logged(self) -> Mapping[str, str]:
        return _LOGGED

    def problems(self, recipe: Recipe) -> Iterator[tuple[str, str]]:
        settings = recipe.trainer
        written = settings.get("loss_type", "sigmoid")
        losses = written if isinstance(written, list) else [written]
        for loss in losses:
            if loss not in _LOSSES:
                yield "trainer.loss_type", f"`{loss}` is unknown; {nearest(str(loss), _LOSSES)}"
        weights = settings.get("loss_weights")
        if isinstance(weights, list) and len(weights) != len(losses):
            what = f"has {len(weights)} weights for the {len(losses)} of `loss_type`"
            yield "trainer.loss_weights", what
        if "exo_pair" in losses and not settings.get("label_smoothing"):
            yield "trainer.label_smoothing", "is required for `exo_pair`: its paper takes 1e-3"
        if settings.get("use_weighting") and _SORTING & {*map(str, losses)}:
            yield "trainer.use_weighting", "does not go with losses that sort the pairs"
        divergence = settings.get("f_divergence_type", "reverse_kl")
        if divergence not in _DIVERGENCES:
            what = f"`{divergence}` is unknown; {nearest(str(divergence), _DIVERGENCES)}"
            yield "trainer.f_divergence_type", what
        elif divergence != "reverse_kl" and not {*map(str, losses)} <= _OF_DIFFERENCES:
            what = f"`{divergence}` goes with {sorted(_OF_DIFFERENCES)} alone"
            yield "trainer.f_divergence_type", what
        if settings.get("sync_ref_model"):
            what = "cannot be resumed: a checkpoint holds no reference model; leave it out"
            yield "trainer.sync_ref_model", what
        if settings.get("train_sampling_strategy") == "group_by_length":
            what = "is for rows with one reply, and a pair has two: leave it out"
            yield "trainer.train_sampling_strategy", what
        if settings.get("padding_free"):
            yield "trainer.padding_free", "TRL 1.16 does not have it for DPO: leave it out"
        modules = recipe.lora.get("target_modules")
        if recipe.tuning != "full" and isinstance(modules, list) and "lm_head" in modules:
            what = "`lm_head` is not trained by DPO, whose log-probabilities read its weights alone"
            yield "lora.target_modules", what
