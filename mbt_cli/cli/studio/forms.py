"""What the forms of the studio add to a manifest's text."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from mbt_cli.core.names import NAME_PATTERN
from mbt_cli.core.plugin import Settings
from mbt_cli.errors import UsageError
from mbt_cli.manifest.edit import with_key, with_stage, with_table

Family = Literal["sampling", "models", "benchmarks", "programs", "judges", "stage"]


class Form(Settings):
    """A filled form."""

    text: str
    """The manifest as it is in the editor."""
    family: Family
    """The table that gets a new member; `stage` for a `[[stage]]`."""
    name: str
    """Name of the new member, or of the stage to change."""
    values: dict[str, Any]
    """Key to value: JSON, or `{"toml": TEXT}` for what is typed as TOML."""
    changes: bool = False
    """Whether the values are those of a stage that is there."""


def filled(form: Form) -> str:
    """The text with what the form adds or changes.

    Raises:
        UsageError: A name or a value is wrong, or the text is not TOML.
    """
    if not re.fullmatch(NAME_PATTERN, form.name):
        raise UsageError(
            f"`{form.name[:64]}` is not a name",
            hint="use letters, digits and `._+-`, at most 64, starting with a letter or digit",
        )
    values = {key: _value(key, value) for key, value in form.values.items()}
    if form.changes:
        text = form.text
        for key, value in values.items():
            text = with_key(text, form.name, key, value)
        return text
    if form.family == "stage":
        kind = values.pop("kind", "rollout")
        return with_stage(form.text, {"kind": kind, "name": form.name, **values})
    return with_table(form.text, form.family, form.name, values)


def _value(key: str, value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"toml"}:
        try:
            found = tomllib.loads(f"v = {value['toml']}")
        except (ValueError, RecursionError):
            found = {}
        if list(found) != ["v"]:
            raise UsageError(
                f"`{key}` is not a value of TOML",
                hint='write `"text"`, `8`, `["a", "b"]` or `{ key = "value" }`',
            )
        return found["v"]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    if isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"`{key}` has no value that a manifest can hold")
