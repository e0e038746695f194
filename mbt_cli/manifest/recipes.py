"""Train stages to recipes: the preset with the stage's own tables laid on it, every key checked."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from mbt_cli.core.chat import Json
from mbt_cli.core.recipe import Recipe, accumulation
from mbt_cli.core.rewards import REWARDS
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems, nearest
from mbt_cli.manifest.toml_text import merged, read_toml
from mbt_cli.manifest.training_keys import known_keys, package_of, wrong_value
from mbt_cli.stages.train import TrainStage

_SAID_ELSEWHERE = {
    "output_dir": "the cell's folder",
    "logging_dir": "the cell's folder",
    "per_device_train_batch_size": "`recipe.device_batch_size`",
    "gradient_accumulation_steps": "`recipe.batch_size`",
    "max_length": "`recipe.max_length`",
    "report_to": "`tracking`",
    "run_name": "the cell's address",
    "save_steps": "`recipe.save_every_steps`",
    "save_strategy": "`recipe.save_every_steps`",
    "reward_weights": "`recipe.rewards`",
    "use_liger_kernel": "`recipe.kernels.liger`",
    "completion_only_loss": "the completion mask",
    "assistant_only_loss": "the completion mask",
    "chat_template_path": "the model's own chat template",
    "resume_from_checkpoint": "mbt, which resumes by itself",
    "push_to_hub": "`mbt export`",
    "task_type": "mbt, which trains causal language models",
}


class Recipes:
    """Makes the recipes of train stages; what is wrong becomes a problem."""

    def __init__(self, presets: PresetFolders, problems: Problems) -> None:
        self._presets = presets
        self._problems = problems

    def recipe(self, stage: TrainStage, where: str) -> Recipe | None:
        """The stage's recipe, or None when something is wrong with it."""
        tree = self._preset(stage, where)
        if tree is None:
            return None
        if stage.reward:  # it replaces the preset's rewards rather than joining them
            tree = {**tree, "rewards": {}}
        tree = merged(tree, dict(_overlay(stage)))
        try:
            recipe = Recipe.model_validate(tree)
        except ValidationError as error:
            self._problems.add_validation(f"{where}.recipe", error, Recipe.model_fields)
            return None
        found = len(self._problems)
        self._check_keys(recipe, where)
        self._check_method(stage, recipe, where)
        self._check_rewards(recipe, where)
        recipe = self._with_launch_preset(recipe, where)
        self._check_batch(recipe, where)
        return recipe if len(self._problems) == found else None

    def _preset(self, stage: TrainStage, where: str) -> dict[str, Any] | None:
        if stage.preset is None:
            return {}
        path = self._presets.find("train", stage.preset)
        if path is None:
            names = self._presets.names("train")
            what = f"no preset `{stage.preset}`; {nearest(stage.preset, names)}"
            self._problems.add(f"{where}.preset", what)
            return None
        return read_toml(path)

    def _check_keys(self, recipe: Recipe, where: str) -> None:
        known = known_keys()
        tables = {
            "trainer": (recipe.trainer, known[recipe.method]),
            "lora": (recipe.lora, known["lora"]),
            "launch.flags": (recipe.launch.flags, known["launch"]),
        }
        for name, (table, names) in tables.items():
            for key, value in table.items():
                if what := _wrong_setting(name, key, value, names):
                    self._problems.add(f"{where}.{name}.{key}", what)

    def _check_method(self, stage: TrainStage, recipe: Recipe, where: str) -> None:
        """What a method learns from has to be there, and nothing that it would not read."""
        if recipe.method == "sft" and stage.data is None:
            self._problems.add(f"{where}.data", "is required: the stages to train on")
        if recipe.method == "grpo" and stage.questions is None:
            what = 'is required: what GRPO asks, as in { benchmark = "NAME", split = "train" }'
            self._problems.add(f"{where}.questions", what)
        if recipe.method == "sft" and stage.reward is not None:
            self._problems.add(f"{where}.reward", "counts for GRPO alone, and this is SFT")

    def _check_rewards(self, recipe: Recipe, where: str) -> None:
        for name in recipe.rewards:
            if name not in REWARDS:
                self._problems.add(
                    f"{where}.reward", f"no reward `{name}`; {nearest(name, REWARDS)}"
                )
        if recipe.method == "grpo" and not recipe.rewards:
            self._problems.add(f"{where}.reward", f"GRPO needs one; {nearest('', REWARDS)}")
        if "length" in recipe.rewards and not recipe.reward_words:
            what = "the reward `length` needs to know how many words are too many"
            self._problems.add(f"{where}.recipe.reward_words", what)

    def _check_batch(self, recipe: Recipe, where: str) -> None:
        """Where only the run knows the number of devices, what fits none of them is refused."""
        launch, devices = recipe.launch, 1
        if launch.accelerate is not None:
            told = launch.processes or launch.flags.get("num_processes")
            devices = told if isinstance(told, int) and told > 0 else 1
        try:
            accumulation(recipe.batch_size, recipe.device_batch_size, devices)
        except ValueError as error:
            self._problems.add(f"{where}.recipe.device_batch_size", str(error))

    def _with_launch_preset(self, recipe: Recipe, where: str) -> Recipe:
        """The accelerate preset's flags laid under the stage's own."""
        launch = recipe.launch
        if launch.accelerate is None:
            return recipe
        path = self._presets.find("accelerate", launch.accelerate)
        if path is None:
            names = self._presets.names("accelerate")
            what = f"no preset `{launch.accelerate}`; {nearest(launch.accelerate, names)}"
            self._problems.add(f"{where}.launch.accelerate", what)
            return recipe
        flags = {**read_toml(path), **launch.flags}
        for key in flags:
            if key not in known_keys()["launch"]:
                what = f"accelerate has no flag `{key}`; {nearest(key, known_keys()['launch'])}"
                self._problems.add(f"{path}", what)
        return recipe.model_copy(update={"launch": launch.model_copy(update={"flags": flags})})


def _wrong_setting(table: str, key: str, value: Json, known: Mapping[str, str]) -> str | None:
    """What is wrong with one key of a stage's table; None where nothing is."""
    if key in _SAID_ELSEWHERE:
        return f"is said by {_SAID_ELSEWHERE[key]}"
    if key not in known:
        return f"{package_of(table)} has no such field; {nearest(key, known)}"
    return None if table.startswith("launch") else wrong_value(key, known[key], value)


def _overlay(stage: TrainStage) -> Iterator[tuple[str, Any]]:
    """The stage's own tables in the words of a recipe."""
    yield from stage.recipe.items()
    for name in ("trainer", "lora", "launch", "tracking"):
        table = getattr(stage, name)
        if table:
            yield name, {**stage.recipe.get(name, {}), **table}
    if isinstance(stage.reward, str):
        yield "rewards", {stage.reward: 1.0}
    elif stage.reward:
        yield "rewards", stage.reward
