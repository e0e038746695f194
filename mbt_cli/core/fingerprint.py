"""What identifies a cell: specs, fingerprints, sizes that may grow, and differences.

A spec is JSON made from settings. Fields marked `RunOnly` are not part of it, and those marked
`AbsentByDefault` only where they differ from their default. Fields marked `Grows` are part of the
spec but not of the base spec, so that a cell that only grew is recognized.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from pydantic import BaseModel

from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import AbsentByDefault, Grows, Plugin, RunOnly
from mbt_cli.core.request_keys import sha256_of

UNSET = "(not set)"
"""The value of a field that one of two specs does not have."""

_SHOWN_CHARACTERS = 60
_SHOWN_BEFORE = 20
"""Characters before the first difference of two long values."""
_CUT = "…"
_LARGEST_INTEGER = 2**63
_SPECS_KEPT = 4096
_MEMBER_HASH = 8
_UNMARKED: frozenset[Any] = frozenset()


def spec_of(settings: object) -> Json:
    """Settings as stable JSON, without the fields that never change results.

    Args:
        settings: A model, or models within mappings and sequences. A model whose class has a
            `version` (every plug-in) gets it as a separate key; so does `file_sha256`.

    Raises:
        TypeError: A value has no stable JSON (a set, a path, NaN, ...); the message has its key
            path.

    Example:
        >>> spec_of({"template": "ab12", "votes": [1, 2]})
        {'template': 'ab12', 'votes': [1, 2]}
    """
    return _spec(settings, (RunOnly,))


def base_spec_of(settings: object) -> Json:
    """`spec_of` without the fields that only add rows when they grow."""
    return _spec(settings, (RunOnly, Grows))


def growth_of(
    settings: object, behind: Callable[[Plugin], Json] = lambda member: None
) -> dict[str, int | None]:
    """Every size that may grow: key path to number, None without a limit.

    Sizes per split have a path for each split, such as `limit.train`. Members of a list count one
    each, such as `metrics[aes 1b7c3f20]`, with the start of the hash of their spec, and that of
    what is behind them, if anything is: `metrics[math_match 1b7c3f20 9a0e63d1]`.

    Args:
        settings: A model.
        behind: What else decides the rows of a member of a list, such as a metric's verifier.
    """
    sizes: dict[str, int | None] = {}
    for path, value in _marked(settings, "", Grows):
        if isinstance(value, Mapping):
            sizes.update({_join(path, str(split)): number for split, number in value.items()})
        elif isinstance(value, list):
            sizes.update({f"{path}[{_member(one, behind(one))}]": 1 for one in value})
        else:
            sizes[path] = value
    return sizes


def _member(plugin: Plugin, behind: Json) -> str:
    parts = (spec_of(plugin), behind) if behind else (spec_of(plugin),)
    return " ".join([plugin.kind, *(sha256_of(part)[:_MEMBER_HASH] for part in parts)])


def is_grown(old: Mapping[str, int | None], new: Mapping[str, int | None]) -> bool:
    """Whether every size is at least what it was; None is larger than any number.

    Example:
        >>> is_grown({"limit": 8, "samples": 1}, {"limit": None, "samples": 1})
        True
        >>> is_grown({"limit": None}, {"limit": 8})
        False
        >>> is_grown({"metrics[f1_score 1b7c3f20]": 1}, {})
        False
    """

    def size(sizes: Mapping[str, int | None], path: str) -> float:
        if path.endswith("]"):
            return sizes.get(path) or 0
        # `limit = 8` holds for `limit.train` too
        number = sizes.get(path, sizes.get(path.rpartition(".")[0]))
        return math.inf if number is None else number

    return all(size(new, path) >= size(old, path) for path in {*old, *new})


def fingerprint(kind: str, stage_version: int, spec: Json, inputs: Mapping[str, str]) -> str:
    """Hex sha256 of everything that determines a cell's rows.

    Args:
        kind: Kind of the stage, such as `rollout`.
        stage_version: Raised when the stage gives other rows for the same spec.
        spec: From `spec_of`; from `base_spec_of` for the base fingerprint.
        inputs: Address to the input's fingerprint (its base fingerprint, respectively).

    Raises:
        TypeError: The spec holds a value that is not stable JSON.
    """
    return fingerprint_of_stable(kind, stage_version, _stable(spec, "spec", ()), inputs)


def fingerprint_of_stable(
    kind: str, stage_version: int, spec: Json, inputs: Mapping[str, str]
) -> str:
    """`fingerprint` of a spec from `spec_of`, which needs no check."""
    parts = {"kind": kind, "version": stage_version, "spec": spec, "inputs": dict(inputs)}
    return sha256_of(parts)


def part_of(spec: Json, is_in: Callable[[str], bool], path: str = "") -> Json:
    """The fields of a spec whose key paths are in a part.

    Example:
        >>> part_of({"a": {"b": 1, "c": 2}}, lambda path: path != "a.b")
        {'a': {'c': 2}}
    """
    if not isinstance(spec, Mapping):
        return spec
    paths = {key: _join(path, key) for key in spec}
    return {key: part_of(spec[key], is_in, at) for key, at in paths.items() if is_in(at)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs between two specs; `UNSET` stands for a missing one."""

    path: str
    old: Json
    new: Json

    def __str__(self) -> str:
        old, new = _shown(self.old), _shown(self.new)
        start = 0
        if old == new and old.endswith(_CUT):  # they differ behind what is shown
            pairs = enumerate(zip(repr(self.old), repr(self.new), strict=False))
            start = next((n for n, (a, b) in pairs if a != b), 0) - _SHOWN_BEFORE
        return f"`{self.path}`: {_shown(self.old, start)} -> {_shown(self.new, start)}"


def differences(old: Json, new: Json) -> list[Difference]:
    """Every field that differs, by key path.

    Example:
        >>> [str(d) for d in differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}})]
        ['`a.b`: 1 -> 3', '`c`: 2 -> (not set)']
    """
    return list(_differences(old, new, ""))


def _differences(old: Json, new: Json, path: str) -> Iterator[Difference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key, UNSET), new.get(key, UNSET), _join(path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, _join(path, str(number)))
    elif (before := _kinds(old)) and (after := _kinds(new)):
        yield Difference(path, before, after)
    elif old != new or type(old) is not type(new):
        yield Difference(path, old, new)


def _kinds(value: Json) -> list[Json]:
    """Kinds of the plug-ins in a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    kinds = [one.get("kind") for one in value if isinstance(one, Mapping)]
    return kinds if len(kinds) == len(value) and None not in kinds else []


def _shown(value: Json, start: int = 0) -> str:
    """A value as text, from a character on; long ones are cut."""
    if value == UNSET:
        return UNSET
    text = repr(value)
    text = text if start <= 0 else f"{_CUT}{text[start:]}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}{_CUT}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@cache
def _fields(kind: type[BaseModel]) -> tuple[tuple[str, frozenset[Any]], ...]:
    """Each field of a class with its marks; cached, since a study has thousands of cells."""
    return tuple(
        (field, frozenset(mark if isinstance(mark, type) else type(mark) for mark in info.metadata))
        for field, info in kind.model_fields.items()
    )


def _children(value: object) -> Iterator[tuple[str, object, frozenset[Any]]]:
    """Key, value and marks of each item of a model, mapping or sequence."""
    if isinstance(value, BaseModel):
        for field, marks in _fields(type(value)):
            yield field, getattr(value, field), marks
    elif isinstance(value, (dict, Mapping)):
        yield from ((str(key), held, _UNMARKED) for key, held in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), held, _UNMARKED) for number, held in enumerate(value))


def _marked(value: object, path: str, mark: type) -> Iterator[tuple[str, Any]]:
    for key, held, marks in _children(value):
        if mark in marks:
            yield _join(path, key), held
        else:
            yield from _marked(held, _join(path, key), mark)


class _Same:
    """A cache key that compares frozen objects by identity, since equal ones are rare."""

    __slots__ = ("value",)

    def __init__(self, value: BaseModel) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


def _spec(settings: object, left_out: tuple[type, ...]) -> Json:
    """The spec, cached for a model that many cells share."""
    if isinstance(settings, BaseModel) and settings.model_config.get("frozen"):
        return _spec_once(_Same(settings), left_out)
    return _stable(settings, "", left_out)


@lru_cache(maxsize=_SPECS_KEPT)
def _spec_once(same: _Same, left_out: tuple[type, ...]) -> Json:
    return _stable(same.value, "", left_out)


def _stable(value: object, path: str, left_out: tuple[type, ...]) -> Json:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        return _stable_number(value, path)
    if isinstance(value, (dict, Mapping)):
        _check_keys(value, path)
    if isinstance(value, (dict, BaseModel, Mapping)):
        spec = {
            key: _stable(held, _join(path, key), left_out)
            for key, held, marks in _children(value)
            if not (marks and (marks.intersection(left_out) or _is_absent(value, key, marks)))
        }
        return {**_version_of(value), **spec}
    if isinstance(value, (list, tuple)):
        return [_stable(held, _join(path, key), left_out) for key, held, _ in _children(value)]
    raise TypeError(
        f"`{path}` holds {value!r}, a {type(value).__name__}, which cannot be part of a fingerprint"
    )


def _is_absent(settings: object, field: str, marks: frozenset[Any]) -> bool:
    if AbsentByDefault not in marks:
        return False
    info = type(settings).model_fields[field]  # type: ignore[attr-defined]
    return bool(getattr(settings, field) == info.get_default(call_default_factory=True))


def _stable_number(value: float, path: str) -> Json:
    if not math.isfinite(value):
        raise TypeError(f"`{path}` is {value}, which JSON does not have")
    if not isinstance(value, float) and not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        raise TypeError(f"`{path}` is {value}, which is too large for 64 bits")
    return value


def _check_keys(value: Mapping[Any, Any], path: str) -> None:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"`{path}` has the key {key!r}, which is not text")


def _version_of(value: object) -> dict[str, Json]:
    """The version of a plug-in's class, and the hash of the study's file that defines it."""
    version: object = getattr(type(value), "version", None)
    if not isinstance(version, int):
        return {}
    digest: object = getattr(type(value), "file_sha256", None)
    return {"version": version, "file_sha256": digest} if digest else {"version": version}
