"""What TRL, PEFT and accelerate can be told, as this version of mbt was checked with them."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.core.names import nearest
from mbt_cli.core.recipe import Recipe

_KINDS: Mapping[str, tuple[str, type | tuple[type, ...]]] = {
    "boolean": ("true or false", bool),
    "integer": ("a whole number", int),
    "number": ("a number", (int, float)),
    "string": ("text", str),
    "array": ("an array", list),
    "table": ("a table", dict),
}
"""Kind to its words and to what TOML makes of it."""
_ALSO = {"fsdp": "boolean", "scale_rewards": "boolean", "lora_alpha": "number"}
"""Fields that take more than their type says, by the code of TRL and PEFT."""
_POSITIVE = frozenset(
    {"learning_rate", "num_train_epochs", "num_generations", "max_completion_length", "r"}
)


@cache
def known_keys() -> Mapping[str, Any]:
    """Settings by table: fields with the kinds they take, flags, choices, and versions."""
    text = (resources.files("mbt_cli") / "trainers" / "known_keys.json").read_bytes()
    keys: Mapping[str, Any] = orjson.loads(text)
    return keys


def package_of(table: str) -> str:
    """Name and version of the package whose settings a stage's table holds."""
    packages = known_keys()["packages"]
    name = {"trainer": "trl", "lora": "peft"}.get(table, "accelerate")
    return f"{name} {packages[name]}"


def wrong_value(field: str, kinds: str, value: Json) -> str | None:
    """What is wrong with the value of a field of TRL or PEFT; None where nothing is.

    Args:
        field: Name of the field.
        kinds: What it takes, as in `integer|string`.
        value: What the manifest says.

    Example:
        >>> wrong_value("learning_rate", "number", "high")
        '`high`: should be a number'
        >>> wrong_value("learning_rate", "number", 1)
    """
    wanted = [*kinds.split("|"), *_ALSO.get(field, "").split()]
    if "any" in wanted:
        return None
    if not any(_is_of(kind, value) for kind in wanted):
        words = " or ".join(_KINDS[kind][0] for kind in wanted)
        return f"`{value}`: should be {words}"
    if field in _POSITIVE and isinstance(value, int | float) and value <= 0:
        return f"`{value}`: should be above 0"
    choices = known_keys()["choices"].get(field)
    if choices is None or value in choices:
        return None
    return f"`{value}` is none of its choices; {nearest(str(value), choices)}"


def place_of(key: str) -> str | None:
    """The table of a train stage that takes this key, where the stage itself does not."""
    if key in Recipe.model_fields:
        return "recipe"
    places = {"trainer": known_keys()["sft"] | known_keys()["grpo"], "lora": known_keys()["lora"]}
    return next((place for place, names in places.items() if key in names), None)


def _is_of(kind: str, value: Json) -> bool:
    if isinstance(value, bool):  # which Python counts as a whole number
        return kind == "boolean"
    return isinstance(value, _KINDS[kind][1])
