"""List the options of `vllm serve`, read from the parser of the installed vLLM.

.venv-vllm/bin/python .ci/list_vllm_keys.py > mbt_cli/backends/vllm_keys.json
"""

# runs in the environment of vLLM; mbt never imports it
# ruff: noqa: TID253

import argparse
import json
import sys
from importlib.metadata import version

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

# `boolean` has a --no- form, `switch` has none; `json` takes one JSON text, `list` several values
OWN = {"help", "config", "model", "model_tag", "host", "port", "uds", "api_key"}


def kind_of(action: argparse.Action) -> str:
    """The kind of value that a flag takes."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean"
    if action.nargs == 0:
        return "switch"
    if action.nargs in ("+", "*") or isinstance(action.nargs, int):
        return "list"
    type_name = getattr(action.type, "__name__", str(action.type))
    return "json" if "json" in type_name.lower() or "loads" in type_name else "value"


def main() -> None:
    """Print the list as JSON."""
    parser = make_arg_parser(FlexibleArgumentParser())
    keys = {}
    for action in parser._actions:
        for option in action.option_strings:
            name = option.removeprefix("--").replace("-", "_")
            if option.startswith("--no-") or not option.startswith("--") or name in OWN:
                continue
            keys[name] = kind_of(action)
    release = version("vllm").partition("+")[0]
    json.dump({"version": release, "keys": dict(sorted(keys.items()))}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
