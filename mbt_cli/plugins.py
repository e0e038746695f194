"""Plug-ins by kind: those that mbt ships, those of installed packages, those of a study's files.

A package adds plug-ins by an entry point of the group `mbt`, whose value is a class or a module. A
study adds them by `[study] plugins = ["./my_benchmark.py"]`. A module or file adds every public
plug-in class that it defines. A plug-in that does not load is reported and left out.
"""

import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from mbt_cli.core.chat import Json
from mbt_cli.core.names import nearest
from mbt_cli.interfaces import Benchmark, Judge, Plugin

GROUP = "mbt"
"""The entry-point group of packages with plug-ins."""
UNKNOWN_KIND = "unknown_kind"
"""Type of the validation error for a `kind` that no plug-in has."""

P = TypeVar("P", bound=Plugin)

_NOUNS = {
    "scores": "metric",
    "tables": "table",
    "figures": "figure",
    "backends": "kind of backend",
    "benchmarks": "kind of benchmark",
    "programs": "kind of program",
}
"""What people call the kinds of a family, for messages."""


class Family(Generic[P]):
    """The plug-ins of one interface. `Annotated[Score, SCORES]` reads a table by its `kind`.

    Args:
        name: Name of the family, as its interface has it.
        shipped: The classes that mbt ships.
        by_name: Whether a bare name is short for `{ kind = NAME }`.
    """

    def __init__(self, name: str, *shipped: type[P], by_name: bool = False) -> None:
        self.name = name
        self.shipped = {kind_of(cls): cls for cls in shipped}
        self._by_name = by_name
        FAMILIES[name] = self

    def kinds(self) -> Mapping[str, type[P]]:
        """Every class by its kind, in the order of names."""
        found: dict[str, Any] = dict(self.shipped)
        for outside in (installed_plugins(), _study_plugins):
            found |= {kind: cls for (family, kind), cls in outside.classes.items()
                      if family == self.name}  # fmt: skip
        return dict(sorted(found.items()))

    def find(self, kind: str) -> type[P] | None:
        """The class of a kind; packages are searched only for kinds that mbt does not ship."""
        return self.shipped.get(kind) or self.kinds().get(kind)

    def fields_of(self, table: object) -> Mapping[str, FieldInfo]:
        """Fields of the class whose kind a table names; none if the kind is unknown."""
        cls = self.find(str(table.get("kind"))) if isinstance(table, Mapping) else None
        fields = {} if cls is None else cls.model_fields
        return {field.alias or name: field for name, field in fields.items()}

    def make(self, table: Any) -> P:
        """The plug-in that a table describes.

        Raises:
            ValidationError: The table is wrong, or its kind is unknown.
        """
        made: P = TypeAdapter(Annotated[Any, self]).validate_python(table)
        return made

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        classes = tuple(self.kinds().values())
        union: Any = Union[classes]  # noqa: UP007 - the members are known at run time only
        if len(classes) > 1:
            union = Annotated[union, Field(discriminator="kind")]
        return handler(TypeAdapter(union).core_schema)

    def _read(self, value: Any) -> Plugin:
        if self._by_name and isinstance(value, str):
            value = {"kind": value}
        if isinstance(value, Plugin) and value.family == self.name:
            return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        kind = value.get("kind")
        cls = self.find(str(kind))
        if cls is not None:
            return cls.model_validate(value)
        known = self.kinds()
        words = f"needs a `kind`; {nearest('', known)}"
        if kind is not None:
            words = f"no {_NOUNS.get(self.name, 'kind')} `{kind}`; {nearest(str(kind), known)}"
        for broken in installed_plugins().problems:
            words += f"; {broken}"
        raise PydanticCustomError(UNKNOWN_KIND, "{words}", {"words": words})


FAMILIES: dict[str, Family[Any]] = {}
"""Every family by its name."""


@dataclass(frozen=True, slots=True)
class OfFamily:
    """Type of a plug-in's field that holds another plug-in: `Annotated[Verifier, OfFamily("...")]`.

    The registry, which imports plug-ins, may not be there yet when the field is declared.

    Args:
        name: Name of the family.
    """

    name: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return FAMILIES[self.name].__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return FAMILIES[self.name].__get_pydantic_json_schema__(schema, handler)


def benchmark_of(spec: Mapping[str, Json]) -> type[Benchmark]:
    """The class of the benchmark in the spec of a questions cell; `Benchmark` if it is unknown."""
    kind = (spec.get("benchmark") or {}).get("kind")
    return FAMILIES["benchmarks"].find(str(kind)) or Benchmark


def judge_of(spec: Mapping[str, Json]) -> Judge | None:
    """The judge in the spec of a judge cell; None if its plug-in, or its verifier's, is not loaded.

    Raises:
        ValidationError: Its settings are not those of the plug-in.
    """
    written = spec.get("judge") or {}
    cls: type[Judge] | None = FAMILIES["judges"].find(str(written.get("kind")))
    try:
        return None if cls is None else cls.model_validate(_settings_in(written))
    except ValidationError as error:
        if all(problem["type"] == UNKNOWN_KIND for problem in error.errors()):
            return None
        raise


def _settings_in(spec: Json) -> Json:
    """Settings as a manifest has them, from the spec of plug-ins that may hold others."""
    if not isinstance(spec, Mapping):
        return spec
    is_plugin = "kind" in spec
    return {
        key: _settings_in(value)
        for key, value in spec.items()
        if not (is_plugin and key in ("version", "file_sha256"))
    }


@dataclass
class Plugins:
    """Plug-ins from outside mbt.

    Args:
        classes: Family and kind to the class.
        problems: A sentence for each plug-in that cannot be used.
    """

    classes: dict[tuple[str, str], type[Plugin]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, classes: Sequence[type[Plugin]], origin: str) -> None:
        """Add classes; those that cannot be used become problems."""
        for cls in classes:
            what = _problem_of(cls)
            kind = (cls.family, str(cls.model_fields["kind"].default))
            if what is None and kind[1] in FAMILIES[cls.family].shipped:
                what = f"{_a_kind(kind)} ships with mbt; choose another name"
            elif what is None and (other := self.classes.get(kind, cls)) is not cls:
                what = f"{_a_kind(kind)} is also defined in `{inspect.getfile(other)}`"
            if what is None:
                self.classes[kind] = cls
            else:
                self.problems.append(f"{origin}`{cls.__name__}`: {what}")


_study_plugins = Plugins()
"""Those of the manifest that was loaded last."""


def use_study_plugins(files: Sequence[Path]) -> Mapping[Path, str]:
    """Load the plug-ins of a study's files; those of the study before are forgotten.

    Returns:
        What is wrong with each file; files without problems are left out.
    """
    _study_plugins.classes.clear()
    wrong: dict[Path, str] = {}
    for path in files:
        found = Plugins(dict(installed_plugins().classes) | _study_plugins.classes)
        if not path.is_file() or path.suffix != ".py":
            wrong[path] = "is not a Python file (.py)" if path.exists() else "no such file"
            continue
        try:
            module = _load(path)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
            wrong[path] = f"cannot be loaded: {_reason(error, path)}"
            continue
        classes = _classes_in(module)
        if not classes:
            wrong[path] = f"defines no plug-in: no class below {_interfaces()}"
        found.add(classes, "")
        if found.problems:
            wrong[path] = "; ".join(found.problems)
        _study_plugins.classes |= {k: c for k, c in found.classes.items() if c in classes}
    return wrong


@cache
def installed_plugins() -> Plugins:
    """Plug-ins of installed packages; a problem names the package and the entry point."""
    found = Plugins()
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        package = f"the package `{point.dist.name}`" if point.dist else "a package"
        origin = f"{package}, entry point `{point.name}`"
        try:
            with redirect_stdout(sys.stderr):
                target = point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is code from elsewhere
            found.problems.append(f"{origin}: cannot be loaded: {_reason(error)}")
            continue
        classes = _classes_in(target) if isinstance(target, ModuleType) else [target]
        if not classes or not all(_is_plugin(cls) for cls in classes):
            what = f"`{point.value}` is not a plug-in: no class below {_interfaces()}"
            found.problems.append(f"{origin}: {what}")
        else:
            found.add(classes, f"{origin}: ")
    return found


def _load(path: Path) -> ModuleType:
    """The file as a module, once for each content; its classes bear the content's hash."""
    source = path.read_bytes()
    digest = sha256(source).hexdigest()
    name = f"mbt_plugin_{path.stem}_{digest[:16]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(path.resolve())
        code = compile(source, str(path), "exec")
        sys.modules[name] = module  # Pydantic looks up annotations there
        try:
            with redirect_stdout(sys.stderr):  # stdout is for data, such as JSON
                exec(code, module.__dict__)
            for cls in _classes_in(module):
                cls.file_sha256 = digest
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _classes_in(module: ModuleType) -> list[type[Plugin]]:
    """The public plug-in classes that a module defines itself, base classes apart."""
    return [
        cls
        for name, cls in vars(module).items()
        if _is_plugin(cls) and cls.__module__ == module.__name__ and not name.startswith("_")
        if not (inspect.isabstract(cls) and cls.model_fields["kind"].is_required())
    ]


def _is_plugin(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, Plugin) and hasattr(cls, "family")


def _problem_of(cls: type[Plugin]) -> str | None:
    if not isinstance(cls.model_fields["kind"].default, str):
        return 'has no kind, such as `kind: Literal["mine"] = "mine"`'
    if inspect.isabstract(cls):
        missing = ", ".join(f"`{name}`" for name in sorted(cls.__abstractmethods__))
        return f"does not define {missing}"
    try:
        cls.model_rebuild()
    except Exception as error:  # noqa: BLE001 - a field's type may be anything
        return _reason(error)
    if get_args(cls.model_fields["kind"].annotation) != (kind_of(cls),):
        return f'needs `kind: Literal["{kind_of(cls)}"] = "{kind_of(cls)}"`'
    return None


def _a_kind(kind: tuple[str, str]) -> str:
    return f"the kind `{kind[1]}` of {kind[0]}"


def _interfaces() -> str:
    return ", ".join(f"`{name}`" for name in sorted(c.__name__ for c in Plugin.__subclasses__()))


def _reason(error: BaseException, path: Path | None = None) -> str:
    """The error on one line, with the last line of the file that it went through."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f" (line {lines[-1]})" if lines else ""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}{where}"


def kind_of(cls: type[Plugin]) -> str:
    """The name of a plug-in class in manifests."""
    return str(cls.model_fields["kind"].default)
