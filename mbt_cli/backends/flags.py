"""A `[serve]` table as the flags of `vllm serve`, checked against a list of what it knows."""

import difflib
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.errors import BackendError


def find_executable(named: str, environment: Mapping[str, str], *, install: str) -> str:
    """A command's path: as named, on the search path, or beside this Python.

    Raises:
        BackendError: It is nowhere; the hint says how to install it.
    """
    found = shutil.which(named, path=environment.get("PATH"))
    beside = Path(sys.executable).parent / named
    if found is None and beside.is_file():
        found = str(beside)
    if found is None:
        raise BackendError(
            f"there is no command `{named}` to serve with",
            hint=f"{install}, or name another environment's by `place.executable`",
        )
    return found


FlagKinds = Mapping[str, str]
"""Flag name with underscores to what it takes: `value`, `list`, `json`, `boolean` or `switch`."""


def flags_of(serve: Mapping[str, Json], kinds: FlagKinds) -> tuple[str, ...]:
    """Flags in the order of the table.

    `true` is `--flag`, `false` is `--no-flag` (left out for a switch that has no such form), a
    list is `--flag a b`, an object is JSON.

    Args:
        serve: Keys with underscores or hyphens, and their values.
        kinds: What each flag takes; of a flag that is not listed the value alone decides.

    Example:
        >>> table = {"max_model_len": 4096, "enforce_eager": True, "async_scheduling": False}
        >>> flags_of(table | {"middleware": ["a", "b"], "speculative_config": {"n": 1}}, {})[:4]
        ('--max-model-len', '4096', '--enforce-eager', '--no-async-scheduling')
    """
    flags: list[str] = []
    for key, value in serve.items():
        flags += _flag(key, value, kinds.get(_name(key), ""))
    return tuple(flags)


def unknown_flags(serve: Mapping[str, Json], kinds: FlagKinds) -> list[tuple[str, str | None]]:
    """Keys that the list does not hold, each with the nearest one that it does."""
    unknown = (key for key in serve if _name(key) not in kinds)
    return [(key, _nearest(_name(key), kinds)) for key in unknown]


def merged_flags(
    layers: Mapping[str, Mapping[str, Json]],
) -> dict[str, tuple[Json, str]]:
    """Key by key what is served with and where it comes from; later layers win.

    Args:
        layers: Name of the layer (`preset qwen3-4b`, `models.X.serve`) to its table.

    Example:
        >>> merged_flags({"preset": {"seed": 1, "dtype": "auto"}, "models.x": {"dtype": "half"}})
        {'seed': (1, 'preset'), 'dtype': ('half', 'models.x')}
    """
    found: dict[str, tuple[Json, str]] = {}
    for layer, table in layers.items():
        found.update({_name(key): (value, layer) for key, value in table.items()})
    return found


def _flag(key: str, value: Json, kind: str) -> list[str]:
    name = _name(key).replace("_", "-")
    if isinstance(value, bool) and kind != "json":
        if value:
            return [f"--{name}"]
        return [] if kind == "switch" else [f"--no-{name}"]
    if isinstance(value, Mapping) or kind == "json":
        return [f"--{name}", orjson.dumps(value).decode()]
    if isinstance(value, list):
        is_plain = not any(isinstance(item, Mapping | list) for item in value)
        if is_plain and kind in ("list", ""):
            return [f"--{name}", *(str(item) for item in value)]
        return [f"--{name}", orjson.dumps(value).decode()]
    return [f"--{name}", str(value)]


def _name(key: str) -> str:
    return key.replace("-", "_")


def _nearest(name: str, known: FlagKinds) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)
