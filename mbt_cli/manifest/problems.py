"""Problems of a manifest: key paths, values, and the nearest valid name."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import isabstract
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mbt_cli.core.names import NAME_PATTERN, NAME_RULE, closest, nearest
from mbt_cli.core.plugin import SECRET
from mbt_cli.errors import Problem
from mbt_cli.interfaces import Plugin
from mbt_cli.plugins import FAMILIES, UNKNOWN_KIND

BAD_NAME = f"is not a valid name: {NAME_RULE}"

_OTHER_TYPE = ("string_type", "list_type")
_LIMITS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "string_too_short": "must have at least {min_length} characters",
    "string_pattern_mismatch": "must match the pattern `{pattern}`",
    "multiple_of": "must be a multiple of {multiple_of}",
}
_TYPES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "must be a list"),
    "finite_number": "must be a finite number",
    "string_type": "must be text in quotes",
}

Names = Mapping[str, Any] | Iterable[str]
"""Valid keys, with their fields where those are tables themselves."""


class Problems:
    """Collect problems, each once, so that a user sees all of them together."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Problem] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, where: str, what: str) -> None:
        """Add a problem at key path `where`."""
        self._found.setdefault((where, what), Problem(where, what))

    def add_validation(
        self,
        where: str,
        error: ValidationError,
        fields: Names,
        table: Any = None,
        *,
        misspelled: Collection[str] = (),
    ) -> None:
        """Add everything that Pydantic found below key path `where`.

        A required key that is missing because it is misspelled is one problem, not two.

        Args:
            where: Key path of the table that was validated; empty for a whole document.
            error: What Pydantic found.
            fields: Valid keys of that table, for suggestions.
            table: The table as written.
            misspelled: Valid keys whose misspelled forms are reported already.
        """
        details = [(_path(detail["loc"]), detail) for detail in error.errors(include_url=False)]
        valid = {path: _keys_at(fields, table, path.split(".")[:-1]) for path, _ in details}
        meant = set(misspelled)
        for path, detail in details:
            if detail["type"] == "extra_forbidden":
                parent, dot, key = path.rpartition(".")
                meant.add(f"{parent}{dot}{closest(key, valid[path])}")
        seen = set()
        for path, detail in details:
            if path in seen or (detail["type"] == "missing" and path in meant):
                continue  # another way in which a union's value could be right, or misspelled
            if detail["type"] in _OTHER_TYPE and any(p.startswith(f"{path}.") for p in valid):
                continue  # the value is of another member of the union, and wrong further down
            seen.add(path)
            self.add(".".join(p for p in (where, path) if p), _message(detail, valid[path]))

    def all(self, overrides: Sequence[str] = ()) -> Sequence[Problem]:
        """All problems, in order; those in a value of `--set` name that option."""
        found = []
        for problem in self._found.values():
            for override in overrides:
                key = override.partition("=")[0].strip()
                if f"{problem.where}.".startswith(f"{key}."):
                    what = f"{problem.what} (from `--set {override}`)"
                    problem = replace(problem, what=what)
                    break
            found.append(problem)
        return tuple(found)


def _path(location: tuple[int | str, ...]) -> str:
    """Key path without the names that Pydantic adds for members of a union."""
    return ".".join(str(part) for part in location if not _is_union_member(part))


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and (
        part in ("str", "int", "float", "bool", "rest", "InputReference", "HeldOut", "[key]")
        or part.startswith(("list[", "dict[", "literal[", "constrained-", "function-"))
    )


def _keys_at(fields: Names, table: Any, path: Sequence[str]) -> Collection[str]:
    """Valid keys of the table at a path below a table; none if they are not known."""
    model: type[BaseModel] | None = None
    for part in path:
        if isinstance(table, list):
            table = table[int(part)] if part.isdecimal() else None
        else:
            field = fields.get(part) if isinstance(fields, Mapping) else None
            models = _models_in(getattr(field, "annotation", None))
            if len(models) != 1:
                return ()
            model = models[0]
            fields = model.model_fields
            table = table.get(part) if isinstance(table, Mapping) else None
        if model is not None and issubclass(model, Plugin) and isabstract(model):
            fields = FAMILIES[model.family].fields_of(table)
    return list(fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _message(detail: Any, fields: Collection[str]) -> str:
    kind, value = detail["type"], detail.get("input")
    last = str(detail["loc"][-1]) if detail["loc"] else ""
    if kind == "extra_forbidden":
        return f"unknown key; {nearest(last, fields)}" if fields else "unknown key"
    if kind == "missing":
        return "is required"
    if kind in (SECRET, UNKNOWN_KIND):
        return str(detail["msg"])
    written = str(value).lower() if isinstance(value, bool) else repr(value)
    text = value if isinstance(value, str) else written
    shown = text if len(text) <= 60 else text[:57] + "..."
    if kind in ("model_type", "dict_type"):
        return f"`{shown}`: must be a table"
    if kind == "string_pattern_mismatch" and detail["ctx"]["pattern"] == NAME_PATTERN:
        return f"`{shown}`: {BAD_NAME}"
    return f"`{shown}`: {_rule(kind, detail)}"


def _rule(kind: str, detail: Any) -> str:
    """What a value must be, in words that do not speak of parsing."""
    limits = {
        name: f"{limit:g}" if isinstance(limit, float) else limit
        for name, limit in (detail.get("ctx") or {}).items()
    }
    if kind in _LIMITS:
        return _LIMITS[kind].format(**limits)
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in ("literal_error", "enum"):
        return f"must be {limits['expected']}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"
