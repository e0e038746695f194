"""Server commands: finding the executable, and a `[serve]` table as its flags."""

import difflib
from collections.abc import Mapping

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.core.findings import Finding, broken, find_command, ok
from mbt_cli.errors import UsageError


def find_executable(command: str, environment: Mapping[str, str], *, install: str) -> str:
    """Path of the command that serves a model.

    Raises:
        UsageError: It is not found; the hint says how to install it.
    """
    found = find_command(command, environment)
    if found is None:
        raise UsageError(
            f"command `{command}` not found",
            hint=f"{install}, or set `place.executable` to the command of another environment",
        )
    return found


def executable_finding(
    model: str, command: str, environment: Mapping[str, str], *, install: str
) -> Finding:
    """Whether the command that serves a model is found, for `mbt doctor`."""
    try:
        path = find_executable(command, environment, install=install)
    except UsageError as error:
        return broken("needs", f"model {model}", error.message, error.hint or install)
    return ok("needs", f"model {model}", f"served with {path}")


FlagKinds = Mapping[str, str]
"""Flag name with underscores to what it expects: `value`, `list`, `json`, `boolean` or `switch`."""


def flags_of(serve: Mapping[str, Json], kinds: FlagKinds) -> tuple[str, ...]:
    """Flags in the order of the table.

    `true` becomes `--flag`, `false` becomes `--no-flag` (nothing for a switch without that form), a
    list becomes `--flag a b`, and an object becomes JSON.

    Args:
        serve: Keys with underscores or hyphens, and their values.
        kinds: What each flag expects; the value alone decides for a flag that is not listed.

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
    """Keys that are not listed, each with the nearest key that is."""
    unknown = (key for key in serve if _name(key) not in kinds)
    return [(key, _nearest(_name(key), kinds)) for key in unknown]


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
