"""Replies of a damaged rows.parquet are never taken over; those that are proven cost nothing."""

import json
import re
import shutil

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.cli.test_origins import STUDY

WORDS = "We set the unrelated documents aside. " * 1_000


@pytest.fixture
def server():
    with ChatServer(f"{WORDS} <answer>Oslo</answer>") as running:
        yield running


@pytest.fixture
def study(workplace, server):
    class Study:
        folder = workplace / "runs/small/base/benchmark=tiny/split=validation/model=lab"
        folder = folder / "prompt=answer"
        rows = folder / "rows.parquet"

        def write(self, *, samples, limit):
            text = STUDY.format(url=server.base_url, more="", samples=samples)
            (workplace / "study.toml").write_text(text.replace("limit = 6", f"limit = {limit}"))

        def flip(self, place):
            """Change one bit, at a share of the file's length."""
            content = bytearray(self.rows.read_bytes())
            content[int(len(content) * place)] ^= 1
            self.rows.write_bytes(content)

        @property
        def asked(self):
            return sum(server.answered.values())

    return Study()


def test_a_flipped_bit_is_named_and_its_rows_are_asked_again(study, mbt):
    study.write(samples=1, limit=20)
    assert mbt("run", "study.toml").code == 0
    study.flip(0.3)
    study.write(samples=2, limit=20)

    planned = mbt("run", "study.toml", "--dry-run")
    grown = mbt("run", "study.toml")

    assert "40 requests new, 0 reused" in planned.out
    assert grown.code == 0, grown.err
    assert "differs from its lineage: 20 of 20 rows" in " ".join(grown.err.split())
    assert study.asked == 20 + 40
    assert pl.read_parquet(study.rows)["reply"].unique().to_list() == [
        f"{WORDS} <answer>Oslo</answer>"
    ]
    assert mbt("show", str(study.folder), "--verify").code == 0
    (aside,) = (study.folder.parents[6] / "runs/.replaced").rglob("rows.parquet")
    assert aside.stat().st_size > 0


def test_a_flipped_bit_costs_only_the_rows_that_were_stored_with_it(study, mbt):
    study.write(samples=1, limit=500)
    assert mbt("run", "study.toml").code == 0
    lineage = json.loads((study.folder / "lineage.json").read_text())
    first, second, *_ = (length for length, _ in lineage["files"]["rows.parquet"]["parts"])
    study.flip((first + second / 2) / study.rows.stat().st_size)

    retried = mbt("run", "study.toml", "--set", "stage.base.samples=2")

    assert retried.code == 0, retried.err
    said = " ".join(retried.err.split())
    lost = int(re.search(r"differs from its lineage: (\d+) of 500 rows", said)[1])
    assert 0 < lost < 400
    assert study.asked == 500 + lost + 500


def test_shards_of_a_grown_cell_ask_only_for_what_is_new(study, mbt):
    study.write(samples=1, limit=20)
    assert mbt("run", "study.toml").code == 0
    study.write(samples=2, limit=20)

    for shard in ("1/2", "2/2"):
        assert mbt("run", "study.toml", "--shard", shard).code == 0
    merged = mbt("merge", "study.toml")

    assert merged.code == 0, merged.err
    assert study.asked == 40
    assert pl.read_parquet(study.rows).height == 40


def test_shards_of_every_second_row_from_an_older_version_go_on_as_blocks(study, mbt):
    study.write(samples=2, limit=10)
    journal = study.folder / "journal"
    assert mbt("run", "study.toml", "--only", "questions").code == 0
    assert mbt("run", "study.toml", "--only", "base", "--shard", "1/1").code == 0
    copied = shutil.copytree(journal, study.folder.parent / "copied")
    assert mbt("merge", "study.toml").code == 0
    whole = pl.read_parquet(study.rows)
    # what the old shard 1/2 left: every second reply in a file of its own, and no rows
    shutil.rmtree(study.folder)
    shutil.move(copied, journal)
    records = (journal / "replies-1-of-1.jsonl").read_bytes().splitlines(keepends=True)
    old = {json.dumps(key).encode() for key in whole["request_key"].gather_every(2)}
    kept = [record for record in records if any(key in record for key in old)]
    (journal / "replies-1-of-2.jsonl").write_bytes(b"".join(kept))
    (journal / "replies-1-of-1.jsonl").unlink()

    early = mbt("merge", "study.toml")
    ran = [mbt("run", "study.toml", "--only", "base", "--shard", f"{n}/2") for n in (1, 2)]
    merged = mbt("merge", "study.toml")

    assert "10 of 20 requests have no reply yet" in early.err
    assert [one.code for one in (*ran, merged)] == [0, 0, 0], merged.err
    assert "0 model calls, 20 replies reused" in merged.out
    assert study.asked == 20 + 10
    same = ["question_id", "sample", "request_key", "seed", "reply", "answer"]
    assert pl.read_parquet(study.rows).select(same).equals(whole.select(same))
