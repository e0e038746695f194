"""The journal of replies: JSON lines in a cell's `journal/` folder, written as replies arrive.

Each writer appends to its own file, one write per reply, so that a kill loses nothing that had
arrived. Readers read all files. A writer truncates a torn last line before it appends, and readers
skip it. Messages are not stored: they are rendered again from the inputs.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.chat import Json, Reply
from mbt_cli.errors import ArtifactError

_BUFFER_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16
_LENGTH_BITS = 32
_OFFSET_BITS = 48
_GOOD_LINE = re.compile(
    rb'{"key":"([0-9a-f]{64})","content_attempt":0,"failure":null,"finish_reason":"stop",'
)
"""Prefix of most records; such a line is indexed without parsing its long texts."""
_RECORD_ENDS = (b'"}\n', b"null}\n")


@dataclass(frozen=True, slots=True)
class Standing:
    """The record of one request, without its texts.

    Args:
        failure: The typed reason; null if there is a reply.
        finish_reason: As the server sent it.
        content_attempt: The content attempt, from 0; null in imported replies.
        seed: The seed that was sent.
    """

    failure: str | None
    finish_reason: str | None
    content_attempt: int | None
    seed: int | None

    @property
    def rank(self) -> tuple[bool, int]:
        """A reply ranks above a failure, then a later content attempt above an earlier one."""
        return self.failure is None, self.content_attempt or 0


_GOOD = Standing(failure=None, finish_reason="stop", content_attempt=0, seed=None)


def record_of(key: str, reply: Reply, content_attempt: int | None) -> bytes:
    """One line of a journal, including its newline."""
    record = {
        "key": key,
        "content_attempt": content_attempt,
        "failure": reply.failure,
        "finish_reason": reply.finish_reason,
        "seed": reply.seed,
        "attempts": reply.attempts,
        "seconds": reply.seconds,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "reasoning_tokens": reply.reasoning_tokens,
        "reasoning": reply.reasoning,
        "text": reply.text,
    }
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


class JournalWriter:
    """Appends replies to one file.

    Raises:
        ArtifactError: The disk is full or the folder cannot be written; the file then ends
            with its last complete record.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"replies-{name}.jsonl"
        self._unsynced = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o644)
            self._size = _cut_torn_tail(self._file)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def append(self, key: str, reply: Reply, content_attempt: int) -> tuple[int, int]:
        """Write one reply; it has reached the operating system when this returns.

        Returns:
            Start of the record in the file, and its length, in bytes.
        """
        line = record_of(key, reply, content_attempt)
        try:
            written = os.write(self._file, line)
            while written < len(line):  # a nearly full disk may take only a part
                written += os.write(self._file, line[written:])
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise unwritable(self.path, error) from error
        begins, self._size = self._size, self._size + written
        self._unsynced = True
        return begins, written

    def sync(self) -> None:
        """Wait until everything appended so far is on the disk."""
        if self._unsynced:
            self._unsynced = False
            try:
                os.fsync(self._file)
            except OSError as error:
                raise unwritable(self.path, error) from error

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.sync()
        finally:
            os.close(self._file)


class JournalIndex:
    """The place of the best record of each request; texts are read on demand.

    Takes about 180 bytes of memory per record, whatever the length of the texts.
    """

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.jsonl"))
        self._numbers = {path: number for number, path in enumerate(self._files)}
        self._handles = [path.open("rb") for path in self._files]
        self._places: dict[bytes, int] = {}
        self._standings: dict[bytes, Standing] = {}
        self.damaged = 0
        """Number of unreadable lines; their requests are sent again."""
        for number in range(len(self._files)):
            self._scan(number)

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> "JournalIndex":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.close()

    def add(
        self, path: Path, extent: tuple[int, int], key: str, reply: Reply, content_attempt: int
    ) -> bool:
        """Add a record that was just appended to a file, given its start and length there.

        Returns:
            Whether it is the best record of its request.
        """
        standing = Standing(reply.failure, reply.finish_reason, content_attempt, reply.seed)
        return self._place(digest_of(key), standing, _packed(self._numbers[path], *extent))

    def standing(self, key: str) -> Standing | None:
        """The record of a request; None if there is none."""
        digest = digest_of(key)
        if digest not in self._places:
            return None
        return self._standings.get(digest, _GOOD)

    def reply(self, key: str) -> Reply | None:
        """The best reply or failure of a request; None if it has no record."""
        place = self._places.get(digest_of(key))
        if place is None:
            return None
        number, offset, length = _unpacked(place)
        record = orjson.loads(os.pread(self._handles[number].fileno(), length, offset))
        del record["key"], record["content_attempt"]
        return Reply(**record)

    def _scan(self, number: int) -> None:
        offset = 0
        for line in _lines(self._files[number]):
            place = _packed(number, offset, len(line))
            if (good := _GOOD_LINE.match(line)) and line.endswith(_RECORD_ENDS):
                self._place(digest_of(good[1].decode()), _GOOD, place)
            elif (record := _record(line)) is None:
                self.damaged += 1
            else:
                self._place(digest_of(record["key"]), _standing(record), place)
            offset += len(line)

    def _place(self, digest: bytes, standing: Standing, place: int) -> bool:
        if digest in self._places:
            if standing.rank < self._standings.get(digest, _GOOD).rank:
                return False
            self._standings.pop(digest, None)
        self._places[digest] = place
        if standing.failure or standing.finish_reason != "stop" or standing.content_attempt:
            self._standings[digest] = standing
        return True


def _lines(path: Path) -> Iterator[bytes]:
    """Complete lines with their newline; a torn last line is skipped."""
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _record(line: bytes) -> dict[str, Json] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "key" in record else None


def _standing(record: dict[str, Json]) -> Standing:
    return Standing(
        record["failure"], record["finish_reason"], record["content_attempt"], record["seed"]
    )


def digest_of(key: str) -> bytes:
    """Half of a request key as bytes: enough to identify a request, in half the memory."""
    return bytes.fromhex(key[:32])


def _packed(number: int, offset: int, length: int) -> int:
    return (number << _OFFSET_BITS | offset) << _LENGTH_BITS | length


def _unpacked(place: int) -> tuple[int, int, int]:
    length = place & ((1 << _LENGTH_BITS) - 1)
    offset = place >> _LENGTH_BITS & ((1 << _OFFSET_BITS) - 1)
    return place >> (_LENGTH_BITS + _OFFSET_BITS), offset, length


def _cut_torn_tail(file: int) -> int:
    """Truncate the file after its last newline; returns the new size."""
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
    return end


def unwritable(path: Path, error: OSError) -> ArtifactError:
    """The error for a journal that cannot be written."""
    return ArtifactError(
        f"cannot write `{path}`: {error.strerror}; all earlier replies are kept",
        hint="free disk space or make the folder writable, then run the same command again",
    )


_IMPORTED = [name for name in rows.REPLY if name != "messages"]
_IMPORTED_AT_ONCE = 5_000


def import_rows(rows_parquet: Path, journal: Path) -> int:
    """Write the replies of an artifact into the journal, in bounded memory.

    A second import of the same file replaces the first one. Rows without a request key, which
    asked no model, are left out.

    Args:
        rows_parquet: A rows file that has the columns of `rows.REPLY`.
        journal: The cell's journal folder; created if needed.

    Returns:
        The number of replies and failures written.

    Raises:
        ArtifactError: The file cannot be read or the journal cannot be written.
    """
    name = sha256(str(rows_parquet.absolute()).encode()).hexdigest()[:12]
    target = journal / f"imported-{name}.jsonl"
    partial = target.with_suffix(".partial")
    count = 0
    try:
        journal.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            for row in _artifact_rows(rows_parquet):
                file.write(_record_of_row(row))
                count += 1
        partial.replace(target)
    except (OSError, pl.exceptions.PolarsError) as error:
        partial.unlink(missing_ok=True)
        raise ArtifactError(
            f"cannot import the replies of `{rows_parquet}` into `{journal}`: {error}"
        ) from error
    return count


def _artifact_rows(path: Path) -> Iterator[dict[str, Any]]:
    lazy = pl.scan_parquet(path).select(_IMPORTED)
    height = lazy.select(pl.len()).collect().item()
    for start in range(0, height, _IMPORTED_AT_ONCE):
        batch = lazy.slice(start, _IMPORTED_AT_ONCE).collect()
        keyed = batch.filter(pl.col("request_key").is_not_null())
        yield from keyed.iter_rows(named=True)


def _record_of_row(row: dict[str, Any]) -> bytes:
    key = row.pop("request_key")
    text = row.pop("reply")
    if (row["failure"] or "").startswith(rows.GATE):
        row["failure"] = None  # the trace failed a gate; the reply is good
    return record_of(key, Reply(text=text, **row), None)
