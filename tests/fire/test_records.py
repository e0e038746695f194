"""Damaged records: changed journals, lineages and data files are read, or refused by name."""

import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from mbt_cli.core import rows
from mbt_cli.core.chat import Reply
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.errors import ArtifactError, UsageError
from mbt_cli.inference.journal import JournalIndex, JournalWriter
from mbt_cli.store.lineage import FileRecord, Lineage, lineage_json, parse_lineage
from mbt_cli.store.records import read_records

KEYS = [sha256(bytes([number])).hexdigest() for number in range(8)]
REPLIES = [
    Reply(
        text=None if number == 3 else f"Øslo\n\u2028 {number}" * 5,
        reasoning="Hm." if number % 2 else None,
        finish_reason="stop" if number % 3 else "length",
        prompt_tokens=number,
        seed=number,
        failure="http_503: busy" if number == 3 else None,
    )
    for number in range(8)
]
TEXTS = st.sampled_from(
    [
        b"\0" * 50,
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\n",
        b"\r",
        b'"',
        b"}",
        b"[" * 5_000,
        b'{"a":' * 5_000,
        b"NaN",
        b"1e999",
        b"9" * 5_000,
        b"-1",
        b"18446744073709551615",
        b"null",
        b"\\ud800",
    ]
)
CHANGES = st.tuples(
    st.sampled_from(["flip", "insert", "overwrite", "remove", "swap"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 7),
    TEXTS,
)


def changed(content, changes):
    for change, where, bit, text in changes:
        place = int(where * len(content))
        before, rest = content[:place], content[place:]
        match change:
            case "flip" if rest:
                content = before + bytes([rest[0] ^ 1 << bit]) + rest[1:]
            case "insert":
                content = before + text + rest
            case "overwrite":
                content = before + text + rest[len(text) :]
            case "remove":
                content = before + rest[1 + 3**bit :]
            case "swap":
                lines = content.splitlines(keepends=True)
                line = lines.pop(place % len(lines)) if lines else b""
                content = b"".join([*lines, line, line])
    return content


def journal(folder):
    with JournalWriter(folder, "0") as writer:
        for key, reply in zip(KEYS, REPLIES, strict=True):
            writer.append(key, reply, 0)
    return writer.path


def read(folder):
    """The replies of the keys, and how many records are damaged."""
    with JournalIndex(folder) as index:
        found = [index.reply(key) for key in KEYS]
        assert all(index.standing(key) is not None for key in KEYS if index.reply(key))
        return found, index.set_aside()


@given(st.lists(CHANGES, min_size=1, max_size=4))
@example([("flip", 0.1, 0, b"")])
def test_a_changed_journal_returns_what_was_written_or_nothing(changes):
    with tempfile.TemporaryDirectory() as name:
        path = journal(Path(name, "journal"))
        path.write_bytes(changed(path.read_bytes(), changes))

        found, damaged = read(path.parent)
        again = read(path.parent)

        assert all(reply in (None, right) for reply, right in zip(found, REPLIES, strict=True))
        assert again == (found, 0)  # damaged records are set aside once
        if damaged:
            kept = Path(name, "journal.damaged").read_bytes()
            assert kept.count(b"\n") == damaged
        with JournalWriter(path.parent, "0") as writer:  # a run goes on
            for key, reply in zip(KEYS, REPLIES, strict=True):
                writer.append(key, reply, 1)
        assert read(path.parent)[0] == REPLIES


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_one_flipped_bit_costs_one_record_or_two(where, bit):
    with tempfile.TemporaryDirectory() as name:
        path = journal(Path(name, "journal"))
        whole = path.read_bytes()
        flipped = changed(whole, [("flip", where, bit, b"")])
        path.write_bytes(flipped)

        found, damaged = read(path.parent)

        lost = found.count(None)
        assert 1 <= lost <= 2
        assert damaged >= 1 or not flipped.endswith(b"\n")


@given(st.lists(CHANGES, min_size=1, max_size=4))
def test_a_changed_journal_without_checksums_is_read_as_replies(changes):
    with tempfile.TemporaryDirectory() as name:
        path = journal(Path(name, "journal"))
        old = []
        for line in path.read_bytes().splitlines(keepends=True):
            record = orjson.loads(line)
            del record["crc32"]
            old.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        path.write_bytes(changed(b"".join(old), changes))

        found, _ = read(path.parent)

        replies = [reply for reply in found if reply is not None]
        columns = ("finish_reason", "prompt_tokens", "seed", "attempts", "seconds", "failure")
        values = [{name: getattr(reply, name) for name in columns} for reply in replies]
        assert frame_of_rows(values, rows.REPLY).height == len(replies)


@contextmanager
def refused_by_name(path):
    """Lets an error pass that names the file."""
    try:
        yield
    except (ArtifactError, UsageError) as error:
        if path.name not in error.message:
            raise


LINEAGE = lineage_json(
    Lineage(
        study="fire",
        stage="base",
        kind="rollout",
        address="base/benchmark=tiny",
        fingerprint="0" * 64,
        base_fingerprint="1" * 64,
        sizes={"samples": 4},
        spec={"stage": {"samples": 4}},
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        files={"rows.parquet": FileRecord(bytes=10, sha256="2" * 64)},
        rows=10,
    )
)


@given(st.lists(CHANGES, min_size=1, max_size=4))
@example([("insert", 0.5, 0, b"[" * 5_000)])
def test_a_changed_lineage_is_read_or_refused_by_name(changes):
    path = Path("runs/fire/lineage.json")
    with refused_by_name(path):
        lineage = parse_lineage(changed(LINEAGE, changes), path)
        assert parse_lineage(lineage_json(lineage), path) == lineage


VALUES = st.sampled_from(
    ["-1", "1e999", "NaN", "9" * 5_000, str(2**63), "true", '"x"', "null", "[]", "{}", "[" * 200]
)


@given(st.sampled_from(sorted(orjson.loads(LINEAGE))), VALUES)
def test_a_lineage_with_another_value_is_read_or_refused_by_name(field, value):
    path = Path("runs/fire/lineage.json")
    content = orjson.dumps({**orjson.loads(LINEAGE), field: "VALUE"})
    content = content.replace(b'"VALUE"', value.encode() + b"]" * value.count("["))
    with refused_by_name(path):
        lineage = parse_lineage(content, path)
        assert parse_lineage(lineage_json(lineage), path) == lineage


DATA = b'[{"question": "Who?", "answer": "Oslo", "level": 1},\n {"question": "Why?"}]\n'


@given(st.sampled_from([".json", ".jsonl"]), st.lists(CHANGES, min_size=1, max_size=4))
@example(".json", [("insert", 0.02, 0, b"[" * 5_000)])
@example(".json", [("insert", 0.65, 0, b"9" * 5_000)])
@example(".json", [("insert", 0.65, 0, b"9" * 50)])
@example(".json", [("insert", 0.2, 0, b"\\ud800")])
def test_a_changed_data_file_is_read_or_refused_by_name(suffix, changes):
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, f"data{suffix}")
        path.write_bytes(changed(DATA, changes))
        with refused_by_name(path):
            found = list(read_records(path))
            for record in found:
                assert record.problem or orjson.dumps(record.value)
