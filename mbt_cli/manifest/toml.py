"""The text of a manifest: reading, `extends`, and `--set`."""

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, time
from pathlib import Path
from typing import Any

from mbt_cli.core.names import listed, nearest
from mbt_cli.errors import ManifestError, MbtError, Problem, UsageError
from mbt_cli.manifest.lines import key_lines, line_of
from mbt_cli.manifest.presets import shipped

Tree = dict[str, Any]

UNSAVED: dict[Path, str] = {}
"""Texts that are read instead of those of their files: what an editor has not saved yet."""

_MOST_LEVELS = 100
_PLACE = re.compile(r"\(at line (\d+), column \d+\)$")
_SHOWN_LINE = 60
_PROJECT = "pyproject.toml"
_SHOWN_FILES = 8


def read_toml(path: Path) -> Tree:
    """The file as a dictionary.

    Raises:
        UsageError: The file does not exist or cannot be read.
        ManifestError: It is not TOML, or `check_values` refuses it; the message names the place.
    """
    text = _text_of(path)
    try:
        tree = tomllib.loads(text)
    except ValueError as error:  # of which TOMLDecodeError is one
        raise ManifestError(str(path), [_not_toml(path, text, str(error))]) from None
    except RecursionError:
        raise _too_deep(str(path)) from None
    check_values(str(path), tree)
    return tree


def check_values(file: str, tree: Any) -> None:
    """Refuse values that no setting can have and that nothing could store.

    Raises:
        ManifestError: The tree is nested too deeply, or holds an integer of more than 64 bits,
            `inf`, `nan`, a date or a time.
    """
    layer: list[tuple[str, Any]] = [("", tree)]
    for _ in range(_MOST_LEVELS):
        below: list[tuple[str, Any]] = []
        for where, value in layer:
            inside = value.items() if isinstance(value, dict) else ()
            for key, child in enumerate(value) if isinstance(value, list) else inside:
                below.append((f"{where}.{key}" if where else str(key), child))
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise ManifestError(file, [Problem(where, "integers have at most 64 bits")])
            if isinstance(value, float) and not math.isfinite(value):
                raise ManifestError(file, [Problem(where, f"`{value}`: must be a finite number")])
            if isinstance(value, (date, time)):  # a date with a time is a date too
                raise ManifestError(file, [Problem(where, "put dates and times in quotes")])
        if not below:
            return
        layer = below
    raise _too_deep(file)


def _too_deep(file: str) -> ManifestError:
    what = f"is nested more than {_MOST_LEVELS} levels deep"
    return ManifestError(file, [Problem("file", what)])


def _text_of(path: Path) -> str:
    """The file's text, without the byte order mark that some editors write."""
    if path in UNSAVED:
        return UNSAVED[path]
    try:
        if path.exists() and not (
            path.is_file() or path.is_dir()
        ):  # it is read twice, and a pipe may never end
            hint = "write the text into a file, and name that file"
            raise UsageError(f"`{path}` is not a regular file", hint=hint)
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"no file `{path}`", hint=_similar_files(path)) from None
    except OSError as error:
        raise UsageError(
            f"`{path}` cannot be read: {error.strerror}", hint=_similar_files(path)
        ) from None
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        raise ManifestError(str(path), [Problem("file", what)]) from None


_SLIPS = (
    (re.compile("[\u201c\u201d\u201e\u2018\u2019]"), 'write straight quotes, `"`'),
    (re.compile(r"=\s*(?:True|False)\b"), "`true` and `false` have small letters"),
    (re.compile(r"=\s*(?:None|null|nil)\b"), "leave out a key that has no value"),
    (re.compile(r"^\[stage\]"), "each stage begins with `[[stage]]`"),
    (re.compile(r",\s*}"), "no comma stands before `}`"),
    (re.compile(r"^\s*\w+\s*:(?!\S*=)"), "a key is set with `=`"),
    (
        re.compile(
            r"^(?!\[).*?[=,\[]\s*(?!true\b|false\b|inf\b|nan\b)[A-Za-z@/~.][^,=\]}]*(?:[,\]}#]|$)"
        ),
        'text stands in quotes, `"`',
    ),
)
"""What a line that is not TOML has, and what to write instead."""


_PLAIN = (
    ("Cannot overwrite a value", "this key is set already, further up"),
    ("Illegal character '\\n'", "the text does not end on this line: close the quotes"),
    ("Expected ']' at the end of a table declaration", "close the bracket, `]`"),
    ("Unclosed array", "close the bracket, `]`"),
    ("Cannot declare", "this table is there already: write the keys below the first one"),
    ("Unescaped '\\' in a string", "write `\\\\` for a backslash"),
)
"""Beginnings of what Python's parser says, and plain words for it."""


def _advice(path: Path, line: str) -> str:
    if path.suffix in (".csv", ".tsv", ".json", ".jsonl", ".parquet"):
        return f"; a manifest is a TOML file: `mbt init --questions {path}` writes one"
    bare = re.sub(r'"[^"]*"|\'[^\']*\'', '""', line)
    return next((f"; {advice}" for slip, advice in _SLIPS if slip.search(bare)), "")


def _not_toml(path: Path, text: str, error: str) -> Problem:
    """The parser's message, with the line in question."""
    place = _PLACE.search(error)
    if place is None:
        return Problem("file", f"is not TOML: {error}{_advice(path, '')}")
    lines = text.splitlines()
    number = min(int(place[1]), len(lines))
    line = lines[number - 1].strip() if lines else ""
    shown = line if len(line) <= _SHOWN_LINE else f"{line[:_SHOWN_LINE]}..."
    words = error[: place.start()].strip()
    plain = next((ours for theirs, ours in _PLAIN if words.startswith(theirs)), words)
    what = f"{plain}{_advice(path, line)}"
    return Problem("file", f"is not TOML: `{shown}`: {what}", f"line {number}")


def _similar_files(path: Path) -> str:
    if (shipped("manifests") / path.name).is_file():
        return f"mbt ships a manifest of this name: use `{path.name}` without a folder"
    folders = (path, path.parent, Path(), Path("manifests"))
    found = {p.name: p for f in folders for p in sorted(f.glob("*.toml")) if p.name != _PROJECT}
    found |= {p.stem: Path(p.stem) for p in sorted(shipped("manifests").glob("*.toml"))}
    near = difflib.get_close_matches(path.name, found, n=1, cutoff=0.7)
    if near:
        return f"did you mean `{found[near[0]]}`?"
    here = [p for p in found.values() if p.suffix][:_SHOWN_FILES]
    if here:
        return listed([f"`{p}`" for p in here])
    return "try a shipped manifest: mbt check quickstart"


def read_manifest_tree(path: Path, overrides: Sequence[str]) -> Tree:
    """A manifest with `extends` and `--set` applied.

    Raises:
        ManifestError: `extends` leads back to the manifest, or to no file.
        UsageError: A `--set` is not KEY=VALUE, or its key does not exist.
    """
    tree = _extended(path, seen=())
    for override in overrides:
        apply_override(tree, override)
    check_values(str(path), tree)
    return tree


def manifest_text(path: Path, overrides: Sequence[str]) -> str:
    """A manifest as written, after the one that it extends and before the values of `--set`."""
    files = [f"# {file.name}\n{text}" for file, text in _texts(path)]
    return "\n".join([*reversed(files), *(f"# --set {override}\n" for override in overrides)])


def _texts(path: Path) -> Iterator[tuple[Path, str]]:
    """File and text of a manifest and of those that it extends, the nearest first."""
    seen: set[Path] = set()
    while path not in seen:
        seen.add(path)
        text = _text_of(path)
        yield path, text
        study = tomllib.loads(text).get("study")
        if not isinstance(study, dict) or "extends" not in study:
            return
        path = path.parent / str(study["extends"])


def written_lines(path: Path, overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Place and text of each line of a manifest, those that it extends and the values of `--set`.

    The place is as in `Problem.line`.
    """
    for file, text in _texts(path):
        for number, line in enumerate(text.splitlines(), 1):
            yield f"line {number}" if file == path else f"{file}, line {number}", line
    yield from (("", f"--set {override}") for override in overrides)


def with_lines(error: ManifestError, overrides: Sequence[str]) -> ManifestError:
    """The error with the line of each problem, where it is known."""
    path, files = Path(error.file), dict[Path, Mapping[str, int]]()
    with suppress(MbtError, ValueError, RecursionError):  # the error may be about such a text
        for file, text in _texts(path):
            files[file] = key_lines(text)
    keys = [f"{override.partition('=')[0].strip()}." for override in overrides]
    found = []
    for problem in error.problems:
        place = line_of(problem.where, list(files.values()))
        if place is not None and not any(f"{problem.where}.".startswith(key) for key in keys):
            file, line = list(files)[place[0]], f"line {place[1]}"
            problem = replace(problem, line=line if file == path else f"{file}, {line}")
        found.append(problem)
    return ManifestError(error.file, found, hint=error.hint)


def _extended(path: Path, seen: tuple[Path, ...]) -> Tree:
    tree = read_toml(path)
    study = tree.get("study")
    if not isinstance(study, dict):
        return tree
    if isinstance(files := study.get("plugins"), list):  # relative to the file that names them
        study["plugins"] = [
            str(path.parent / file) if isinstance(file, str) else file for file in files
        ]
    parent = study.pop("extends", None)
    if parent is None:
        return tree
    where = path.parent / str(parent)
    if not where.is_file():
        what = f"no file `{where}`; {_similar_files(where)}"
        raise ManifestError(str(path), [Problem("study.extends", what)])
    chain = (*seen, path.resolve())
    if where.resolve() in chain:
        cycle = " -> ".join(p.name for p in (*chain, where.resolve()))
        raise ManifestError(
            str(path), [Problem("study.extends", f"leads back to the manifest: {cycle}")]
        )
    return merged(_extended(where, chain), tree)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`base` with the values of `over`: tables are merged, stages by name, other values replaced.

    Example:
        >>> merged({"a": {"x": 1, "y": [1, 2]}}, {"a": {"y": [3]}})
        {'a': {'x': 1, 'y': [3]}}
    """
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            result[key] = merged(below, value)
        elif key == "stage" and isinstance(below, list) and isinstance(value, list):
            result[key] = _merged_stages(below, value)
        else:
            result[key] = value
    return result


def stage_name(stage: Any) -> Any:
    """The name of a `[[stage]]` as written, by default its kind; None without either."""
    return stage.get("name", stage.get("kind")) if isinstance(stage, dict) else None


def _merged_stages(base: list[Any], over: list[Any]) -> list[Any]:
    stages = list(base)
    names = [stage_name(stage) for stage in stages]
    for stage in over:
        name = stage_name(stage)
        if name is not None and name in names:
            stages[names.index(name)] = merged(stages[names.index(name)], stage)
        else:
            stages.append(stage)
    return stages


def apply_override(tree: Tree, override: str) -> None:
    """Apply one `--set KEY=VALUE`; the value is TOML, or text if it is not valid TOML.

    Stages are named: `stage.base.samples=8`. A key may be quoted: `models."a.b".id=x`.

    Raises:
        UsageError: There is no `=`, the key is empty, or a part of it is not a table.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"`--set {override}` is not KEY=VALUE", hint="`--set study.seed=7`")
    *path, last = _key_parts(key.strip(), override)
    node: Any = tree
    for done, part in enumerate(path):
        node = _step(node, part, is_stage=done == 1 and path[0] == "stage")
        if not isinstance(node, dict | list):
            at = ".".join(path[: done + 1])
            raise UsageError(
                f"`--set {override}`: `{at}` is not a table", hint=f"`--set {at}={text}`"
            )
    if not isinstance(node, dict):
        raise UsageError(
            f"`--set {override}`: the name of a stage and a key are needed",
            hint="`--set stage.NAME.KEY=VALUE`",
        )
    node[last] = _value(text)


def _key_parts(key: str, override: str) -> list[str]:
    try:
        node: Any = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        raise UsageError(
            f"`--set {override}`: `{key}` is not a valid key",
            hint='quote parts: `models."a b".id=x`',
        ) from None
    parts = []
    while isinstance(node, dict):
        (part, node) = next(iter(node.items()))
        parts.append(part)
    return parts


def _step(node: Any, part: str, *, is_stage: bool) -> Any:
    if not isinstance(node, list):
        return node.setdefault(part, {})
    if not is_stage:
        return None
    names = [stage_name(stage) for stage in node]
    if part not in names:
        raise UsageError(
            f"`--set stage.{part}`: no stage `{part}`",
            hint=nearest(part, [str(n) for n in names if n is not None]),
        )
    return node[names.index(part)]


def _value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text
