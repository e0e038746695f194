"""Records of data files one by one, each with the place where it stands: `file:line`.

JSON arrays are read in pieces, so a file of a gigabyte needs the memory of one record.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO

import orjson
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.errors import ArtifactError, MissingInputError, UsageError

_PIECE_CHARACTERS = 1 << 20
_ROWS_AT_ONCE = 1000
_DECODER = json.JSONDecoder()
_BETWEEN = " \t\r\n,"


@dataclass(frozen=True, slots=True)
class Record:
    """One record, or what is wrong with the place where one should be.

    Args:
        where: `file:line`, or `file:record N` from 1 where lines mean nothing.
        value: The record; None when it cannot be read.
        problem: Why it cannot be read.
    """

    where: str
    value: Mapping[str, Json] | None
    problem: str = ""


def data_files(pattern: str | Path) -> list[Path]:
    """Files that a path or a pattern with `*` names, sorted by name.

    Raises:
        MissingInputError: There is none.
    """
    path = Path(pattern)
    # a name that holds `*` or `[` and is there is meant as it stands
    found = [path] if path.exists() else _matching(path)
    files = [path for path in found if path.is_file()]
    if not files:
        raise MissingInputError(
            f"`{pattern}` is a folder" if path.is_dir() else f"no file `{pattern}`",
            hint="put the data there, or correct the path in the manifest"
            + ("; `FOLDER/*.jsonl` names all such files in it" if path.is_dir() else ""),
        )
    return files


def _matching(pattern: Path) -> list[Path]:
    fixed = list(takewhile(lambda part: not set(part) & set("*?["), pattern.parts))
    rest = pattern.parts[len(fixed) :]
    return sorted(Path(*fixed).glob("/".join(rest))) if rest else []


def parquet_columns(path: Path) -> frozenset[str]:
    """Names of a Parquet file's columns; empty for a file of another kind."""
    if path.suffix != ".parquet":
        return frozenset()
    try:
        return frozenset(pl.read_parquet_schema(path))
    except (pl.exceptions.ComputeError, OSError) as error:
        raise ArtifactError(f"`{path}` is not a whole Parquet file: {error}") from error


def read_records(path: Path) -> Iterator[Record]:
    """Records of a Parquet file, JSON lines (`.jsonl`) or a JSON array (`.json`).

    Raises:
        ArtifactError: The file as a whole cannot be read.
        UsageError: Its name ends in something else.
    """
    check_suffix(path)
    return _READERS[path.suffix](path)


def check_suffix(path: Path) -> None:
    """Refuse a file whose name tells of no form that is read here."""
    if path.suffix not in _READERS:
        raise UsageError(
            f"`{path}` ends in `{path.suffix}`; data files end in {', '.join(_READERS)}",
            hint=_as_json_lines(path) if path.suffix in (".csv", ".tsv") else None,
        )


def _as_json_lines(path: Path) -> str:
    read = f"p.read_csv({str(path)!r}" + (", separator='\\t')" if path.suffix == ".tsv" else ")")
    written = str(path.with_suffix(".jsonl"))
    return (
        f'a table becomes one by: python -c "import polars as p; {read}.write_ndjson({written!r})"'
    )


def _parquet(path: Path) -> Iterator[Record]:
    try:
        rows = pl.scan_parquet(path)
        count = rows.select(pl.len()).collect().item()
        for start in range(0, count, _ROWS_AT_ONCE):
            batch = rows.slice(start, _ROWS_AT_ONCE).collect()
            for number, row in enumerate(batch.iter_rows(named=True), start + 1):
                yield Record(f"{path.name}:record {number}", row)
    except (pl.exceptions.ComputeError, OSError) as error:
        raise ArtifactError(f"`{path}` is not a whole Parquet file: {error}") from error


def _json_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _record(f"{path.name}:{number}", line)


def _record(where: str, line: bytes) -> Record:
    try:
        value = orjson.loads(line.strip().removeprefix(BOM_UTF8).strip())
    except orjson.JSONDecodeError as error:
        return Record(where, None, f"is not JSON: {error}")
    return _object(where, value)


def _object(where: str, value: Json) -> Record:
    if isinstance(value, Mapping):
        return Record(where, value)
    return Record(where, None, "is not a JSON object")


def _json(path: Path) -> Iterator[Record]:
    """A JSON array; or JSON lines, which some data sets keep under the same ending."""
    with path.open(encoding="utf-8-sig") as stream:
        try:
            if _first_character(stream) == "[":
                for number, value in enumerate(_array_items(stream, path), 1):
                    yield _object(f"{path.name}:record {number}", value)
                return
        except UnicodeDecodeError as error:
            raise ArtifactError(
                f"`{path}` is not UTF-8 ({error.reason})", hint="save it as UTF-8"
            ) from error
    yield from _json_lines(path)


def _first_character(stream: IO[str]) -> str:
    """The first character that is no white space; the stream then stands behind it."""
    while character := stream.read(1):
        if not character.isspace():
            return character
    return ""


def _array_items(stream: IO[str], path: Path) -> Iterator[Json]:
    """Items of an array whose opening bracket has been read.

    Raises:
        ArtifactError: An item is not JSON, or the file ends early: what follows cannot be found.
    """
    text, start, read_all, count = "", 0, False, 0
    while True:
        while start < len(text) and text[start] in _BETWEEN:
            start += 1
        if text.startswith("]", start):
            return
        try:
            value, start = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            if read_all:
                place = f"`{path}`, record {count + 1}"
                raise ArtifactError(f"{place}: is not JSON: {error.msg}") from error
            piece = stream.read(_PIECE_CHARACTERS)
            text, start, read_all = text[start:] + piece, 0, len(piece) < _PIECE_CHARACTERS
            continue
        yield value
        count += 1


_READERS = {".json": _json, ".jsonl": _json_lines, ".parquet": _parquet}
