"""Replies of a damaged rows.parquet are never taken over; those that are proven cost nothing."""

import json
import re

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
