"""Which settings TRL, PEFT and accelerate know, so that a manifest is checked without torch.

.venv-train/bin/python .ci/list_training_keys.py > mbt_cli/manifest/training_keys.json
"""

# ruff: noqa: D103, TID253
import dataclasses
import json
from argparse import BooleanOptionalAction
from importlib.metadata import version

from accelerate.commands.launch import launch_command_parser
from peft import LoraConfig
from trl import GRPOConfig, SFTConfig


def fields_of(config: type) -> list[str]:
    return sorted(field.name for field in dataclasses.fields(config) if field.init)


def launch_flags() -> dict[str, str]:
    """Flag of `accelerate launch` to what it takes: `value` or `switch`."""
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
        "sft": fields_of(SFTConfig),
        "grpo": fields_of(GRPOConfig),
        "lora": fields_of(LoraConfig),
        "launch": launch_flags(),
    }
    print(json.dumps(known, indent=1))  # noqa: T201
