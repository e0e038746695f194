"""List the settings of TRL, PEFT and accelerate, so that mbt checks manifests without torch.

.venv-train/bin/python .ci/list_training_keys.py > mbt_cli/trainers/known_keys.json
"""

# ruff: noqa: D103, TID253
import dataclasses
import json
import types
from argparse import BooleanOptionalAction
from enum import EnumType
from importlib.metadata import version
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from accelerate.commands.launch import launch_command_parser
from peft import LoraConfig
from trl import DPOConfig, GRPOConfig, SFTConfig

KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "table"}
"""Python type to its name in `mbt_cli/trainers/known_keys.py`."""


def fields_of(config: type) -> dict[str, str]:
    """Field to the types of its values, such as `string|integer`."""
    return {name: "|".join(kinds_of(hint)) for name, hint in hints_of(config).items()}


def choices_of(config: type) -> dict[str, list[str]]:
    """Fields with a fixed set of values, to those values."""
    found = {}
    for name, hint in hints_of(config).items():
        parts = [part for part in parts_of(hint) if part is not types.NoneType]
        enums = [part for part in parts if isinstance(part, EnumType)]
        if enums:
            found[name] = [str(choice.value) for enum in enums for choice in enum]
        elif all(get_origin(part) is Literal for part in parts):
            found[name] = [str(choice) for part in parts for choice in get_args(part)]
    return found


def hints_of(config: type) -> dict[str, Any]:
    hints = get_type_hints(config)
    names = sorted(field.name for field in dataclasses.fields(config) if field.init)
    return {name: hints[name] for name in names}


def kinds_of(hint: Any) -> list[str]:
    return sorted({kind_of(part) for part in parts_of(hint) if part is not types.NoneType})


def parts_of(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def kind_of(part: Any) -> str:
    """Name of the type; `any` for a type without a TOML equivalent."""
    origin = get_origin(part) or part
    if isinstance(part, EnumType) or origin is Literal:
        return "string"
    return "array" if origin in (list, tuple) else KINDS.get(origin, "any")


def launch_flags() -> dict[str, str]:
    """Flag of `accelerate launch` to its type: `value`, `switch` or `boolean`."""
    found = {}
    for action in launch_command_parser()._actions:
        names = [n[2:].replace("-", "_") for n in action.option_strings if n.startswith("--")]
        kind = "switch" if action.nargs == 0 else "value"
        kind = "boolean" if isinstance(action, BooleanOptionalAction) else kind
        found.update(dict.fromkeys(names, kind))
    return dict(sorted(found.items()))


if __name__ == "__main__":
    packages = ("trl", "transformers", "peft", "accelerate")
    known = {
        "packages": {name: version(name) for name in packages},
        "trainer": {
            "sft": fields_of(SFTConfig),
            "grpo": fields_of(GRPOConfig),
            "dpo": fields_of(DPOConfig),
        },
        "lora": fields_of(LoraConfig),
        "choices": choices_of(SFTConfig)
        | choices_of(GRPOConfig)
        | choices_of(DPOConfig)
        | choices_of(LoraConfig),
        "launch": launch_flags(),
    }
    print(json.dumps(known, indent=1))  # noqa: T201
