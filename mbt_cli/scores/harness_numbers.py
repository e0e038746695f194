"""The numbers of a harness: found in its result files by paths, checked, and with intervals."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from mbt_cli.core.chat import Json
from mbt_cli.core.harness import (
    SHARES,
    NumberRule,
    path_text,
    pattern_of,
    wildcards,
    with_captures,
)
from mbt_cli.errors import StageError
from mbt_cli.scores.statistics import NORMAL_95

_SHOWN_KEYS = 6
_NONE = ("", "n/a", "na", "none", "null")
"""Texts by which programs say that a number has no error."""
_TOLERANCE = 1e-9


class ResultError(StageError):
    """The results are there, and hold no number where the manifest looks for one."""


class _Field(str):
    """A field of a CSV file, which may be a number."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a harness, with shares from 0 to 1.

    Args:
        metric: Its name in tables.
        low: Lower end of the 95 % interval; None without one.
        error: Its standard error; None if the results have none.
        n: Questions behind it; None if unknown.
        unit: As in `rows.SUMMARY`: `percent` for all shares.
        path: Where it stands in the results.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    error: float | None
    n: int | None
    unit: str
    path: str


def parsed(name: str, content: bytes) -> list[Json]:
    """The documents of a result file: one of a JSON file, the list of rows of the others.

    Raises:
        ResultError: It is not what its name says.
    """
    try:
        text = content.decode("utf-8-sig")
        if name.endswith(".csv"):
            rows = csv.DictReader(io.StringIO(text), strict=True)
            return [[{key: _Field(v or "") for key, v in row.items() if key} for row in rows]]
        if name.endswith(".jsonl"):
            return [[json.loads(line) for line in text.splitlines() if line.strip()]]
        return [json.loads(text)]
    except (ValueError, RecursionError, csv.Error) as error:
        kind = name.rpartition(".")[2].upper()
        raise ResultError(f"`{name}` is not {kind}: {error}") from None


def numbers_of(documents: Mapping[str, Json], rules: Sequence[NumberRule]) -> list[Number]:
    """Every number that the rules find.

    Args:
        documents: Name of a result file to its content.
        rules: The metrics of the harness.

    Raises:
        ResultError: A path is not there, a value is not a number, or two numbers have one name.
    """
    found: dict[str, Number] = {}
    for rule in rules:
        for number in _numbers(documents, rule):
            if (other := found.get(number.metric)) is not None:
                raise ResultError(
                    f"`{other.path}` and `{number.path}` are both called `{number.metric}`",
                    hint='name one otherwise, as in { name = "*_f1", value = ... }',
                )
            found[number.metric] = number
    return list(found.values())


def _numbers(documents: Mapping[str, Json], rule: NumberRule) -> Iterator[Number]:
    matches = [
        (file, captures, value)
        for file, document in documents.items()
        for captures, value in _matches(document, rule.value)
    ]
    if not matches:
        raise _missing(documents, rule.value)
    if len(matches) > 1 and "*" not in rule.name:
        places = [f"`{path_text(with_captures(rule.value, c))}` in `{f}`" for f, c, _ in matches]
        raise ResultError(
            f"{len(matches)} numbers are called `{rule.name}`: {', '.join(places[:3])}",
            hint="give them a name with `*`, or make `results` and the path fit one of them",
        )
    for file, captures, raw in matches:
        document = documents[file]
        more: dict[str, float | None] = {}
        for field in ("error", "low", "high"):
            keys = getattr(rule, field)
            more[field] = None if keys is None else _beside(document, keys, captures)
        yield _number(rule, captures, raw, more, _count(document, rule, captures))
    for field in ("error", "low", "high"):
        keys = getattr(rule, field)
        if keys is not None and not any(
            _is_there(documents[f], with_captures(keys, c)) for f, c, _ in matches
        ):
            file, captures, _ = matches[0]
            raise _missing({file: documents[file]}, with_captures(keys, captures))


def _number(
    rule: NumberRule,
    captures: Sequence[str],
    raw: Json,
    more: Mapping[str, float | None],
    n: int | None,
) -> Number:
    path = path_text(with_captures(rule.value, captures))
    value, error, low, high = _as_number(raw, path), more["error"], more["low"], more["high"]
    whole = SHARES.get(rule.unit)
    if whole is not None and not -_TOLERANCE <= value <= whole * (1 + _TOLERANCE):
        raise ResultError(
            f"`{path}` is {value:g}, and a {rule.unit} is from 0 to {whole:g}",
            hint='say the `unit` of the harness or of this metric: "share", "percent", "points", '
            "...",
        )
    if error is not None and error < 0:
        raise ResultError(f"the error of `{path}` is {error:g}, which is below 0")
    if error is not None:
        low, high = value - NORMAL_95 * error, value + NORMAL_95 * error
        if whole is not None:
            low, high = max(0.0, low), min(whole, high)
    if low is not None and high is not None and not low - _TOLERANCE <= value <= high + _TOLERANCE:
        raise ResultError(f"`{path}` is {value:g}, outside of its interval {low:g} to {high:g}")
    if low is None or high is None:
        low = high = None
    by = whole or 1.0
    name = with_captures((rule.name,), captures[: rule.name.count("*")])[0]
    if "*" in rule.name and len(captures) > rule.name.count("*"):
        rest = "_".join(captures[rule.name.count("*") - 1 :])
        name = with_captures((rule.name,), [*captures[: rule.name.count("*") - 1], rest])[0]
    return Number(
        metric=_as_name(name),
        value=value / by,
        low=None if low is None else low / by,
        high=None if high is None else high / by,
        error=None if error is None else error / by,
        n=n,
        unit=rule.unit if whole is None else "percent",
        path=path,
    )


def _as_name(text: str) -> str:
    """A name for tables; what names cannot have is `_`.

    Example:
        >>> _as_name("arc_challenge:rc::olmes")
        'arc_challenge_rc_olmes'
    """
    return re.sub(r"[^A-Za-z0-9.+@-]+", "_", text).strip("_") or "_"


def _matches(node: Json, keys: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Json]]:
    """What each `*` of a path stands for, and the value there, for all values that it finds."""
    if not keys:
        yield (), node
        return
    for captures, below in _below(node, keys[0]):
        for more, value in _matches(below, keys[1:]):
            yield (*captures, *more), value


def _below(node: Json, key: str) -> Iterator[tuple[tuple[str, ...], Json]]:
    if isinstance(node, Mapping):
        if key in node:
            yield (), node[key]
        elif "*" in key:
            pattern = pattern_of(key)
            for own, value in node.items():
                if match := pattern.fullmatch(own):
                    yield match.groups(), value
    elif isinstance(node, list):
        field, is_choice, text = key.partition("=")
        pattern = pattern_of(text)
        for place, item in enumerate(node):
            if is_choice and isinstance(item, Mapping) and field in item:
                if match := pattern.fullmatch(str(item[field])):
                    yield match.groups(), item
            elif not is_choice and (key == "*" or key == str(place)):
                yield ((str(place),) if key == "*" else ()), item


def _is_there(document: Json, keys: Sequence[str]) -> bool:
    return next(_exact(document, keys), None) is not None


def _exact(node: Json, keys: Sequence[str]) -> Iterator[tuple[Json]]:
    """The value at a path whose `*` are filled in."""
    if not keys:
        yield (node,)
    elif isinstance(node, Mapping) and keys[0] in node:
        yield from _exact(node[keys[0]], keys[1:])
    elif isinstance(node, list):
        field, is_choice, text = keys[0].partition("=")
        for place, item in enumerate(node):
            is_own = keys[0] == str(place)
            if is_choice:
                is_own = isinstance(item, Mapping) and str(item.get(field)) == text
            if is_own:
                yield from _exact(item, keys[1:])


def _beside(document: Json, keys: Sequence[str], captures: Sequence[str]) -> float | None:
    """A number that belongs to another one; None if it has none."""
    keys = with_captures(keys, captures)
    found = next(_exact(document, keys), None)
    if found is None or found[0] is None:
        return None
    if isinstance(found[0], str) and found[0].strip().lower() in _NONE:
        return None
    return _as_number(found[0], path_text(keys))


def _count(document: Json, rule: NumberRule, captures: Sequence[str]) -> int | None:
    if rule.n is None or isinstance(rule.n, int):
        return rule.n
    keys = with_captures(rule.n, captures)
    if not wildcards(rule.n) and not _is_there(document, keys):
        raise _missing({"": document}, keys)
    found = _beside(document, rule.n, captures)
    if found is None:
        return None
    if found < 0 or not found.is_integer():
        raise ResultError(f"`{path_text(keys)}` is {found:g}, and `n` is a number of questions")
    return int(found)


def _as_number(raw: Any, path: str) -> float:
    if isinstance(raw, _Field):
        try:
            raw = float(raw)
        except ValueError:
            raise ResultError(f"`{path}` is `{raw}`, which is not a number") from None
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        kinds = {dict: "an object", list: "a list", type(None): "null", bool: "true or false"}
        what = kinds.get(type(raw)) or f"the text `{str(raw)[:60]}`"
        raise ResultError(f"`{path}` is {what}, which is not a number{_inside(raw)}")
    value = float(raw) if abs(raw) < 1e300 or isinstance(raw, float) else math.inf
    if math.isnan(value):
        raise ResultError(f"`{path}` is NaN: the program has no number there")
    if math.isinf(value):
        raise ResultError(f"`{path}` is infinite: the program has no number there")
    return value


def _inside(raw: Any) -> str:
    if not isinstance(raw, Mapping) or not raw:
        return ""
    return f"; it has {_listed([str(key) for key in raw])}"


def _missing(documents: Mapping[str, Json], keys: Sequence[str]) -> ResultError:
    """That a path finds nothing: how far it leads, and what is there."""
    best: tuple[int, str, Json] = (-1, "", None)
    for file, document in documents.items():
        for depth in range(len(keys), -1, -1):
            node = next(iter(_matches(document, keys[:depth])), None)
            if node is not None:
                if depth > best[0]:
                    best = depth, file, node[1]
                break
    depth, file, node = best
    if depth < 0:
        return ResultError(f"`{path_text(keys)}` is not in the results, which are empty")
    inside = f"`{path_text(keys[:depth])}`" if depth else f"`{file}`" if file else "the file"
    key = keys[min(depth, len(keys) - 1)]
    where = f" in `{file}`" if file and depth else ""
    what = f"`{path_text(keys)}` is not there: {inside}{where}"
    if isinstance(node, Mapping):
        own = [str(one) for one in node]
        return ResultError(f"{what} has no key `{key}`; {_closest(key, own)}")
    if isinstance(node, list):
        field, is_choice, text = key.partition("=")
        there = [i for i in node if isinstance(i, Mapping)]
        values = list(dict.fromkeys(str(i[field]) for i in there if field in i))
        if is_choice and values:
            return ResultError(
                f"{what} is a list without `{field}` = `{text}`; {_closest(text, values)}"
            )
        fields = list(dict.fromkeys(str(name) for item in there for name in item))
        form = f"choose by a field, as in `{fields[0]}=TEXT`" if fields else "it has no objects"
        more = f"; {_closest(field, fields)}" if fields else ""
        return ResultError(
            f"{what} is a list of {len(node)}, so `{key}` finds nothing: {form}{more}"
        )
    return ResultError(f"{what} is a single value, without keys")


def _closest(key: str, keys: Sequence[str]) -> str:
    if not keys:
        return "it is empty"
    begun = [one for one in keys if key and one.startswith(key)]
    close = list(dict.fromkeys([*get_close_matches(key, keys, n=_SHOWN_KEYS, cutoff=0.4), *begun]))
    if close:
        return f"the closest {'are' if len(close) > 1 else 'is'} {_listed(close)}"
    return f"there {'are' if len(keys) > 1 else 'is'} {_listed(keys)}"


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(f"`{key}`" for key in keys[:_SHOWN_KEYS]) + more
