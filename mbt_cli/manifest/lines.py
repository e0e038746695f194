"""Lines of a manifest's keys, for messages about them."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_STAGE = "stage"
_LONGEST_STATEMENT = 400
"""Statements of more lines are not looked into: each line costs a parse of those before it."""


def key_lines(text: str) -> Mapping[str, int]:
    r"""Key path to line number, from 1, of every key in a TOML text.

    Stages go by their number, and by their name if they have one.

    Example:
        >>> key_lines('[study]\nname = "a"\n[[stage]]\nname = "base"\n')["stage.base.name"]
        4
    """
    found: dict[str, int] = {}
    header: list[str] = []
    stages: list[str] = []
    for number, lines in statements(text.splitlines()):
        tree = tomllib.loads("\n".join(lines))
        is_header = lines[0].lstrip().startswith("[")
        if is_header:
            header = _only_path(tree)
            if isinstance(tree.get(_STAGE), list):
                stages.append("")
        elif header == [_STAGE] and stages:
            stages[-1] = _word(tree, "name") or stages[-1] or _word(tree, "kind")
        above = header
        if stages and header[:1] == [_STAGE]:
            above = [_STAGE, str(len(stages) - 1), *header[1:]]
        if is_header:
            for length in range(1, len(above) + 1):
                found.setdefault(".".join(above[:length]), number)
        else:
            for path, line in _keys(tree, lines, 0):
                found.setdefault(".".join([*above, path]), number + line)
    names = {f"{_STAGE}.{place}": f"{_STAGE}.{name}" for place, name in enumerate(stages) if name}
    for path, number in list(found.items()):
        place = ".".join(path.split(".")[:2])
        if place in names:
            found.setdefault(names[place] + path.removeprefix(place), number)
    return found


def line_of(where: str, files: Sequence[Mapping[str, int]]) -> tuple[int, int] | None:
    """Number of the file and line of a key path, or of the nearest table above it.

    Args:
        where: Key path of a problem, such as `stage.base.samples`.
        files: `key_lines` of a manifest and of those that it extends, in this order.
    """
    parts = re.sub(r"\[(\d+)\]", r".\1", where).split(".")
    for length in range(len(parts), 0, -1):
        paths = [".".join(parts[:length])]
        if parts[0] == _STAGE and length > 2:  # an axis is a field of the stage, too
            paths.append(".".join([*parts[:2], "matrix", *parts[2:length]]))
        for path in paths:
            for number, lines in enumerate(files):
                if path in lines:
                    return number, lines[path]
    return None


def statements(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line and the lines of every header and every key with its value."""
    start = 0
    while start < len(lines):
        if not lines[start].strip() or lines[start].lstrip().startswith("#"):
            start += 1
            continue
        for end in range(start + 1, min(start + _LONGEST_STATEMENT, len(lines)) + 1):
            try:
                tomllib.loads("\n".join(lines[start:end]))
            except tomllib.TOMLDecodeError:
                continue
            yield start + 1, list(lines[start:end])
            break
        else:
            end = start + 1
        start = end


def _only_path(tree: Any) -> list[str]:
    """The keys of a header, such as `[models.a]`."""
    path: list[str] = []
    while tree:
        if isinstance(tree, list):
            tree = tree[0]
            continue
        (key, tree), *_ = tree.items()
        path.append(key)
    return path


def _keys(value: Any, lines: Sequence[str], line: int) -> Iterator[tuple[str, int]]:
    """Paths below a value and their lines among those of its statement."""
    items: list[tuple[str, Any, str]] = []
    if isinstance(value, dict):
        items = [(key, child, key) for key, child in value.items()]
    elif isinstance(value, list):
        items = [(str(n), child, str(child)) for n, child in enumerate(value)]
    for key, child, text in items:
        at = next((n for n in range(line, len(lines)) if text in lines[n]), line)
        yield key, at
        for path, below in _keys(child, lines, at):
            yield f"{key}.{path}", below


def _word(tree: Mapping[str, Any], key: str) -> str:
    value = tree.get(key)
    return value if isinstance(value, str) else ""
