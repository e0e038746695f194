"""Data files of users: which files a path names, and their content as records or as a frame.

JSON arrays are read in pieces, so a file of a gigabyte needs the memory of one record.
"""

import csv
import gzip
import json
import re
import shlex
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO

import orjson
import polars as pl

from mbt_cli.core.chat import Json
from mbt_cli.errors import ArtifactError, MbtError, MissingInputError, UsageError

_PIECE_CHARACTERS = 1 << 20
_BATCH_ROWS = 1000
_LONGEST_REPAIRED = 20_000  # characters of a row without a closing quote
_DECODER = json.JSONDecoder()
_SEPARATORS = " \t\r\n,"


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a file, or the reason why it cannot be read.

    Args:
        where: `file:line`, or `file:record N` (from 1) for files without lines.
        value: The record; None if it cannot be read.
        problem: Why it cannot be read.
    """

    where: str
    value: Mapping[str, Json] | None
    problem: str = ""


def data_files(pattern: str | Path) -> list[Path]:
    """Files that a path or a glob pattern names, sorted by name.

    Raises:
        MissingInputError: The file does not exist.
    """
    path = Path(pattern)
    # an existing path whose name contains `*` or `[` is not a pattern
    found = [path] if path.exists() else _matching(path)
    files = [path for path in found if path.is_file()]
    if not files:
        if str(pattern).startswith("s3:/"):
            what = f"no object `{str(pattern).replace('s3:/', 's3://').replace(':///', '://')}`"
            hint = "correct the address, or upload it: `mbt data push PATH ADDRESS`"
            raise MissingInputError(what, hint=hint)
        if re.match(r"\w+:/+\w", str(pattern)):
            what = f"`{pattern}` is an address, and data files are local"
            raise MissingInputError(what, hint="download the file, and name it here")
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
    """Names of a Parquet file's columns; empty for a file with another suffix."""
    if path.suffix != ".parquet":
        return frozenset()
    try:
        return frozenset(pl.read_parquet_schema(path))
    except (pl.exceptions.ComputeError, OSError) as error:
        raise _damaged_parquet(path, error) from error


def read_frame(
    path: Path, what: str, *, text: bool = False, error: type[MbtError] = ArtifactError
) -> pl.DataFrame:
    """A whole Parquet, JSON lines or CSV file.

    Args:
        path: The file.
        what: What it holds, for messages.
        text: Whether the values of a CSV file are all text; else their types are inferred.
        error: Error for a file that cannot be read.

    Raises:
        UsageError: The file has another suffix.
    """
    try:
        match path.suffix:
            case ".parquet":
                return pl.read_parquet(path)
            case ".jsonl":
                return pl.read_ndjson(path, infer_schema_length=None)
            case ".csv":
                return pl.read_csv(path, infer_schema=not text, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as reason:
        raise error(f"`{path}` cannot be read: {reason}") from reason
    raise UsageError(
        f"`{path}` ends in `{path.suffix}`; files of {what} end in .parquet, .jsonl or .csv"
    )


def read_records(path: Path) -> Iterator[Record]:
    """Records of Parquet, JSON lines (`.jsonl`, `.jsonl.gz`), a JSON array (`.json`), CSV or TSV.

    Values of CSV and TSV are text, and None where a field is empty.

    Raises:
        ArtifactError: The file as a whole cannot be read.
        UsageError: It has another suffix.
    """
    check_suffix(path)
    return _READERS[_suffix(path)](path)


def check_suffix(path: Path) -> None:
    """Refuse a file that `read_records` cannot read, by its suffix."""
    if _suffix(path) not in _READERS:
        raise UsageError(
            f"`{path}` ends in `{_suffix(path)}`; data files end in {', '.join(_READERS)}",
            hint="save a sheet as CSV in UTF-8" if path.suffix in (".xls", ".xlsx") else None,
        )


def _suffix(path: Path) -> str:
    """The suffix that says how a file is read: `.jsonl`, or `.jsonl.gz`."""
    return "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix


def _not_utf8(path: Path) -> ArtifactError:
    """The error for a file in another encoding, with the command that converts it."""
    with path.open("rb") as file:
        start = file.read(2)
    is_utf16 = start in (BOM_UTF16_BE, BOM_UTF16_LE)
    named, encoding = ("UTF-16", "UTF-16") if is_utf16 else ("Latin-1 or Windows-1252", "CP1252")
    source, made = (shlex.quote(str(p)) for p in (path, path.with_stem(f"{path.stem}-utf8")))
    return ArtifactError(
        f"`{path}` is not UTF-8; it looks like {named}",
        hint=f"convert it, and name the new file: iconv -f {encoding} -t UTF-8 {source} > {made}",
    )


def _table(path: Path) -> Iterator[Record]:
    """Rows of a CSV or TSV file whose first row has the names of the columns."""
    separator = "\t" if path.suffix == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = _Table(stream, separator)
        try:
            names = [name.strip() for name in next(lines, ())]
            _check_names(path, names)
            lines.columns = len(names)
            for values in lines:
                if not any(values):
                    continue
                where = f"{path.name}:{lines.line_num}"
                if len(values) != len(names):
                    what = f"has {len(values)} values for {len(names)} columns"
                    yield Record(where, None, f"{what}; a value with a comma needs quotes")
                else:
                    named = zip(names, values, strict=True)
                    yield Record(where, {name: value or None for name, value in named})
        except UnicodeDecodeError as error:
            raise _not_utf8(path) from error
        except csv.Error as error:
            where = f"`{path}`, line {lines.line_num}"
            hint = 'close every quote, `"`; a quote inside a value is written twice'
            raise ArtifactError(f"{where}: is not CSV: {error}", hint=hint) from error


class _Table:
    """Rows of values, read strictly; a missing quote is put back where only one place fits.

    Args:
        stream: The text.
        separator: What stands between values.
    """

    def __init__(self, stream: IO[str], separator: str) -> None:
        self.columns = 0
        self.line_num = 0
        self._stream, self._separator = stream, separator
        self._read: list[str] = []  # lines of the row that is read
        self._rows = self._strict(self._lines())

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        self._read.clear()
        try:
            return next(self._rows)
        except csv.Error:
            if (repaired := self._repaired("".join(self._read))) is None:
                raise
            self._rows = self._strict(self._lines())  # it goes on behind the row
            return repaired

    def _lines(self) -> Iterator[str]:
        for line in self._stream:
            self.line_num += 1
            self._read.append(line)
            yield line

    def _strict(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self._separator, strict=True)

    def _repaired(self, row: str) -> list[str] | None:
        """The values of a row that lacks the quote at the end of a value; None if it is not clear.

        The official file of IMO-AnswerBench has such a row.
        """
        found = []
        if len(row) > _LONGEST_REPAIRED:
            return None
        for place in re.finditer(f'{re.escape(self._separator)}"', row):
            closed = f'{row[: place.start()]}"{row[place.start() :]}'
            try:
                rows = list(self._strict(closed.splitlines(keepends=True)))
            except csv.Error:
                continue
            if len(rows) == 1 and len(rows[0]) == self.columns:
                found.append(rows[0])
        return found[0] if len(found) == 1 else None


def _check_names(path: Path, names: list[str]) -> None:
    """Refuse a first row that does not name the columns."""
    if len(names) == 1 and ";" in names[0]:
        raise ArtifactError(
            f"`{path}` is separated by semicolons", hint="save it with commas, or as .tsv with tabs"
        )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ArtifactError(f"`{path}` has two columns `{twice}`", hint="rename one of them")


def _parquet(path: Path) -> Iterator[Record]:
    try:
        rows = pl.scan_parquet(path)
        count = rows.select(pl.len()).collect().item()
        for start in range(0, count, _BATCH_ROWS):
            batch = rows.slice(start, _BATCH_ROWS).collect()
            for number, row in enumerate(batch.iter_rows(named=True), start + 1):
                yield Record(f"{path.name}:record {number}", row)
    except (pl.exceptions.ComputeError, OSError) as error:
        raise _damaged_parquet(path, error) from error


def _damaged_parquet(path: Path, error: Exception) -> ArtifactError:
    what = str(error).partition("\n")[0]
    return ArtifactError(
        f"`{path}` is not a complete Parquet file: {what}", hint="copy or download it again"
    )


def _packed_lines(path: Path) -> Iterator[Record]:
    try:
        with gzip.open(path) as lines:
            yield from _records_of(path, lines)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ArtifactError(f"`{path}` is not a complete gzip file: {error}") from error


def _json_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        yield from _records_of(path, lines)


def _records_of(path: Path, lines: Iterable[bytes]) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            value = orjson.loads(line.strip().removeprefix(BOM_UTF8).strip())
        except orjson.JSONDecodeError as error:
            if not _is_utf8(line):
                raise _not_utf8(path) from error
            yield Record(where, None, f"is not JSON: {error}")
        else:
            yield _object(where, value)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _object(where: str, value: Json) -> Record:
    if isinstance(value, Mapping):
        return Record(where, value)
    return Record(where, None, "is not a JSON object")


def _json(path: Path) -> Iterator[Record]:
    """A JSON array, or JSON lines, which some data sets store under the same suffix."""
    with path.open(encoding="utf-8-sig") as stream:
        try:
            if _first_character(stream) == "[":
                for number, value in enumerate(_array_items(stream, path), 1):
                    where = f"{path.name}:record {number}"
                    try:
                        orjson.dumps(value)
                    except TypeError as error:  # half of a character, a number over 64 bits
                        yield Record(where, None, f"cannot be stored: {error}")
                    else:
                        yield _object(where, value)
                return
        except UnicodeDecodeError as error:
            raise _not_utf8(path) from error
    yield from _json_lines(path)


def _first_character(stream: IO[str]) -> str:
    """Read up to the first character that is not white space."""
    while character := stream.read(1):
        if not character.isspace():
            return character
    return ""


def _array_items(stream: IO[str], path: Path) -> Iterator[Json]:
    """Items of an array after its opening bracket.

    Raises:
        ArtifactError: An item is not JSON, or the file ends early; later items cannot be found.
    """
    text, start, read_all, count = "", 0, False, 0
    while True:
        while start < len(text) and text[start] in _SEPARATORS:
            start += 1
        if text.startswith("]", start):
            return
        try:
            value, start = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            if read_all or not isinstance(error, json.JSONDecodeError):
                place = f"`{path}`, record {count + 1}"
                reason = getattr(error, "msg", error)
                raise ArtifactError(f"{place}: is not JSON: {reason}") from error
            piece = stream.read(_PIECE_CHARACTERS)
            text, start, read_all = text[start:] + piece, 0, len(piece) < _PIECE_CHARACTERS
            continue
        yield value
        count += 1


_READERS = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".jsonl.gz": _packed_lines,
    ".parquet": _parquet,
    ".csv": _table,
    ".tsv": _table,
}
