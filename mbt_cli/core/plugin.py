"""The base classes of settings and plug-ins, and the marks of their fields."""

import ast
import inspect
import re
import sys
from abc import ABC
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from mbt_cli.core.chat import Json
from mbt_cli.core.findings import Finding
from mbt_cli.core.secrets import is_secret
from mbt_cli.core.written_secrets import written_secrets

SECRET = "secret"
"""Type of a validation error whose message must not show the value, which may be a key."""


VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
"""Pattern of an environment variable's name."""


def _variable(name: str) -> str:
    # the name alone: a message about the table would show its values
    if not re.fullmatch(VARIABLE, name):
        raise ValueError("is not a variable name: use letters, digits and `_`, no digit first")
    if is_secret(name):
        raise ValueError("looks like a secret: set it in the shell that runs or submits mbt")
    return name


Variable = Annotated[str, AfterValidator(_variable)]
"""Name of a variable whose value stands in a file; never one that holds a secret."""


def _without_secrets(flags: dict[str, Json]) -> dict[str, Json]:
    for key in written_secrets(flags):  # without the value
        what = f"`{key}` would be stored: export its variable, such as HF_TOKEN"
        raise PydanticCustomError(SECRET, f"{what}; the server inherits it")
    return flags


Flags = Annotated[dict[str, Json], AfterValidator(_without_secrets)]
"""Flags of a server, none of which holds a secret."""


class RunOnly:
    """Mark of a field that never changes results and is not part of fingerprints.

    Example:
        >>> from typing import Annotated
        >>> concurrency: Annotated[int, RunOnly]
    """


class AbsentByDefault:
    """Mark of a field that is part of fingerprints only where it differs from its default.

    For a field that was added later: cells that were finished without it stay done.
    """


def absent_fields(settings: BaseModel) -> frozenset[str]:
    """The fields marked `AbsentByDefault` that have their default."""
    return frozenset(
        name
        for name, field in type(settings).model_fields.items()
        if AbsentByDefault in field.metadata
        and getattr(settings, name) == field.get_default(call_default_factory=True)
    )


class Grows:
    """Mark of a field whose larger value only adds rows: `limit`, `samples`, a list of `metrics`.

    A finished cell whose spec differs in such fields alone is extended without `--replace`. A list
    of plug-ins is larger if it has all that the other has.
    """


class Settings(BaseModel):
    """Frozen, typed, and strict about unknown keys; a docstring under a field documents it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,  # most commands validate only a few
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = handler(source)
        _make_exact(schema)
        return schema


def _make_exact(schema: Any) -> None:
    """Let numbers and booleans be what they are in TOML: no `true` for 1, no `"yes"` for `true`."""
    if isinstance(schema, dict):
        if schema.get("type") in ("bool", "int", "float"):
            schema["strict"] = True
        schema = schema.values()
    elif not isinstance(schema, list):
        return
    for part in schema:
        _make_exact(part)


class Plugin(Settings, ABC):
    """A frozen class whose fields are its settings; `kind` names it in a manifest."""

    family: ClassVar[str]
    """Name of its family, such as `benchmarks`; set by each interface."""
    version: ClassVar[int] = 1
    """Raised when the same settings give other results than before; enters the fingerprint."""
    file_sha256: ClassVar[str | None] = None
    """Hash of the study's file that defines it, if one does; enters the fingerprint."""
    kind: str
    """Its name in a manifest; each class allows one."""

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        """Checks of `mbt doctor MANIFEST`: whether this part of a study can run here.

        Args:
            name: Its name in the manifest.
            environment: The process environment, `.env` merged in.
        """
        return iter(())


def field_docs(cls: type[object]) -> dict[str, str]:
    """Field name to the docstring under it, inherited ones too.

    Pydantic can do this when it makes a class, which costs every command a third of a second.

    Example:
        >>> field_docs(Plugin)["kind"]
        'Its name in a manifest; each class allows one.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            own = inspect.get_annotations(base)
            found = {name: doc for name, doc in found.items() if name not in own}
            found |= _own_docs(base)
    return found


def _own_docs(cls: type[object]) -> dict[str, str]:
    return _docs_of_module(cls.__module__)[cls.__qualname__]


@cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    """Qualified name of each class to the docs of its own fields: a module is parsed once."""
    found: dict[str, dict[str, str]] = {}

    def visit(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                found[inside + child.name] = _docs_in(child)
                visit(child, f"{inside}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                visit(child, f"{inside}{child.name}.<locals>.")
            elif isinstance(child, ast.stmt):
                visit(child, inside)

    visit(ast.parse(inspect.getsource(sys.modules[name])), "")
    return found


def _docs_in(node: ast.ClassDef) -> dict[str, str]:
    return {
        field.target.id: inspect.cleandoc(doc.value.value)
        for field, doc in pairwise(node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
