"""Problems in a user's words: key paths, values, and the nearest valid name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mbt_cli.core.model import SECRET
from mbt_cli.core.names import nearest
from mbt_cli.errors import Problem
from mbt_cli.manifest.schema import NAME_PATTERN
from mbt_cli.plugins import UNKNOWN_KIND

BAD_NAME = "is no name: letters, digits and `._+-` only, 64 at most, a letter or digit first"

Names = Mapping[str, Any] | Iterable[str]
"""Valid keys, with their fields where those have tables of their own."""


def with_overrides(problems: Sequence[Problem], overrides: Sequence[str]) -> list[Problem]:
    """The same problems; those that `--set` brought in say so."""
    told = []
    for problem in problems:
        keys = {override: override.partition("=")[0].strip() for override in overrides}
        said = [
            o for o, k in keys.items() if problem.where == k or problem.where.startswith(f"{k}.")
        ]
        told.append(
            replace(problem, what=f"{problem.what} (from `--set {said[-1]}`)") if said else problem
        )
    return told


class Problems:
    """Collects problems, each once, so that a user sees all of them in one go."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Problem] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, where: str, what: str) -> None:
        """Note that something at key path `where` is wrong."""
        self._found.setdefault((where, what), Problem(where, what))

    def add_validation(
        self,
        where: str,
        error: ValidationError,
        fields: Names,
    ) -> None:
        """Note everything that Pydantic found below key path `where`.

        Args:
            where: Key path of the table that was validated.
            error: What Pydantic says.
            fields: Valid keys of that table, for suggestions.
        """
        told: set[str] = set()
        for detail in error.errors(include_url=False):
            path = _path(detail["loc"])
            if path in told:
                continue  # another way in which a union's value could have been right
            told.add(path)
            valid = _fields_at(fields, path.split(".")[:-1])
            self.add(f"{where}.{path}" if path else where, _words(detail, valid))

    def all(self) -> Sequence[Problem]:
        """What was found, in order."""
        return tuple(self._found.values())


def _path(location: tuple[int | str, ...]) -> str:
    """Key path without the names that Pydantic puts in for union members."""
    parts = [str(p) for p in location if not _is_union_member(p)]
    return ".".join(parts)


def _is_union_member(part: int | str) -> bool:
    return isinstance(part, str) and (
        part in ("str", "int", "float", "bool", "rest", "InputReference", "[key]")
        or part.startswith(("list[", "dict[", "literal[", "constrained-", "function-"))
    )


def _fields_at(fields: Names, path: Sequence[str]) -> Names:
    """Valid keys of the table at a path below a table; none where there may be several kinds."""
    for part in path:
        field = fields.get(part) if isinstance(fields, Mapping) else None
        models = _models_in(getattr(field, "annotation", None))
        if len(models) != 1:
            return ()
        fields = models[0].model_fields
    return fields


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _words(detail: Any, fields: Names) -> str:
    kind, value = detail["type"], detail.get("input")
    last = str(detail["loc"][-1]) if detail["loc"] else ""
    if kind == "extra_forbidden":
        return f"unknown key; {nearest(last, fields)}" if fields else "unknown key"
    if kind == "missing":
        return "is required and not there"
    if kind in (SECRET, UNKNOWN_KIND):
        return str(detail["msg"])
    if kind in ("model_type", "dict_type"):
        return f"`{_short(value)}`: is to be a table"
    if kind == "string_pattern_mismatch" and detail["ctx"]["pattern"] == NAME_PATTERN:
        return f"`{_short(value)}`: {BAD_NAME}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"`{_short(value)}`: {message[:1].lower()}{message[1:]}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
