"""List the options of `vllm serve`, read from the parser of the installed vLLM.

    .venv-vllm/bin/python .ci/list_vllm_keys.py > mbt_cli/backends/vllm_keys.json

A release without a CPU build yet: unpack its wheel into a folder, end the version of its dist-info
(name of the folder, and METADATA) in `+cpu`, and set PYTHONPATH to the folder.
"""

# runs in the environment of vLLM; mbt never imports it
# ruff: noqa: TID253

import argparse
import importlib
import json
import sys
from importlib.metadata import version

from vllm.utils.argparse_utils import FlexibleArgumentParser

# `boolean` has a --no- form, `switch` has none; `json` takes one JSON text, `list` several values
# where the parser is, newest version first: 0.33, 0.32, before
PARSERS = ("common", "launchers", "openai")
OWN = {"help", "config", "model", "model_tag", "host", "port", "uds", "api_key"}


def parser_of_serve() -> argparse.ArgumentParser:
    """The parser of `vllm serve`."""
    for place in PARSERS:
        try:
            found = importlib.import_module(f"vllm.entrypoints.{place}.cli_args")
        except ModuleNotFoundError:
            continue
        return found.make_arg_parser(FlexibleArgumentParser())
    raise SystemExit("this vLLM has its parser elsewhere: look for `make_arg_parser`")


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
    keys = {}
    for action in parser_of_serve()._actions:
        # since 0.33 `--enable-x` has `--disable-x` beside it, which has no --no- form of its own
        opposites = getattr(action, "negative_option_strings", ())
        for option in action.option_strings:
            name = option.removeprefix("--").replace("-", "_")
            if option.startswith("--no-") or not option.startswith("--") or name in OWN:
                continue
            keys[name] = "switch" if option in opposites else kind_of(action)
    release = version("vllm").partition("+")[0]
    json.dump({"version": release, "keys": dict(sorted(keys.items()))}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
