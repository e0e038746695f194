"""Replies are paid for once on a machine, whatever stages, models and studies are called."""

import json

import polars as pl
import pytest

from mbt_cli.store import reply_index
from tests.cli.chat_server import ChatServer

STUDY = """
[study]
name = "first"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0.7
max_tokens = 16

[models.student]
backend = { kind = "openai", base_url = "URL" }
id = "student"
sampling = "plain"

[benchmarks.b]
kind = "question_answer"
files = { validation = "b.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "b", split = "validation", model = "student" }
prompt = "answer"
samples = 2

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match", "tokens"]
"""
QUESTIONS, SAMPLES = 3, 2
EACH = QUESTIONS * SAMPLES


@pytest.fixture
def server():
    with ChatServer("<answer>Oslo</answer>") as server:
        yield server


@pytest.fixture
def study(workplace, server, monkeypatch):
    monkeypatch.delenv("MBT_REUSE")
    monkeypatch.setenv("MBT_CACHE", str(workplace / "cache"))
    lines = [{"question": f"Capital {n}?", "answer": "Oslo"} for n in range(QUESTIONS)]
    (workplace / "b.jsonl").write_text("\n".join(map(json.dumps, lines)))
    path = workplace / "study.toml"
    path.write_text(STUDY.replace("URL", server.base_url))
    return path


def changed(study, *pairs):
    text = study.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    study.write_text(text)


def lineage(study, name, stage):
    (path,) = (study.parent / "runs" / name / stage).rglob("lineage.json")
    return json.loads(path.read_text()), path.parent


RENAMED = {
    "stage": ([('"base"', '"answers"')], "first", "answers"),
    "model": ([("models.student", "models.pupil"), ('model = "student"', 'model = "pupil"')],
              "first", "base/benchmark=b/split=validation/model=pupil"),
    "study": ([('"first"', '"second"')], "second", "base"),
}  # fmt: skip


@pytest.mark.parametrize("renamed", RENAMED)
def test_nothing_is_sent_again_after_a_rename(mbt, study, server, renamed):
    pairs, name, stage = RENAMED[renamed]
    assert mbt("run", "study.toml").code == 0
    before, folder = lineage(study, "first", "base")
    paid = pl.read_parquet(folder / "rows.parquet")
    changed(study, *pairs)

    dry = mbt("run", "study.toml", "--dry-run", "--json")
    ran = mbt("run", "study.toml", "--replace")  # the scores read a cell of another name

    assert ran.code == 0, ran.err
    assert sum(server.asked.values()) == EACH
    (told,) = [c["requests"] for c in json.loads(dry.out) if c["requests"]]
    assert told == {"new": 0, "reused": EACH}
    after, folder = lineage(study, name, stage)
    lent = pl.read_parquet(folder / "rows.parquet")
    same = pl.exclude("attempts")
    assert lent.select(same).equals(paid.select(same))
    assert set(lent["attempts"]) == {0}
    # the new cell says where its replies are from, and counts no token twice
    place = before["address"] if name == "first" else f"first/{before['address']}"
    assert after["notes"]["asked_in"] == [place]
    assert before["tokens"]["completion"] == paid["completion_tokens"].sum() > 0
    assert after["tokens"]["completion"] == 0
    assert after["requests"] == {"sent": 0, "retried": 0, "reused": EACH, "failed": 0}


def test_the_numbers_of_lent_replies_equal_those_of_paid_ones(mbt, study, server):
    assert mbt("run", "study.toml").code == 0
    changed(study, ('"first"', '"second"'))
    assert mbt("run", "study.toml").code == 0

    summaries = [
        pl.read_parquet(next((study.parent / "runs" / name / "scores").rglob("summary.parquet")))
        for name in ("first", "second")
    ]
    assert sum(server.asked.values()) == EACH
    assert summaries[0].equals(summaries[1])


@pytest.mark.parametrize(
    ("setting", "option", "variable"),
    [
        ('[run]\nreuse = "off"\n', (), None),
        ('[run]\nreuse = "study"\n', (), None),
        ("", ("--no-cache",), None),
        ("", (), "study"),
    ],
    ids=["off", "study", "no-cache", "machine"],
)
def test_another_study_lends_nothing_where_it_must_not(
    mbt, study, server, setting, option, variable, monkeypatch
):
    assert mbt("run", "study.toml").code == 0
    changed(study, ('"first"', '"second"'), ("[sampling.plain]", f"{setting}[sampling.plain]"))
    if variable:
        monkeypatch.setenv("MBT_REUSE", variable)

    ran = mbt("run", "study.toml", *option)

    assert ran.code == 0, ran.err
    assert sum(server.asked.values()) == 2 * EACH
    assert "asked_in" not in lineage(study, "second", "base")[0]["notes"]


def test_a_study_that_keeps_to_itself_lends_nothing_to_others(mbt, study, server):
    text = study.read_text()
    changed(study, ("[sampling.plain]", '[run]\nreuse = "study"\n[sampling.plain]'))
    assert mbt("run", "study.toml").code == 0
    study.write_text(text.replace('"first"', '"second"'))

    assert mbt("run", "study.toml").code == 0

    assert sum(server.asked.values()) == 2 * EACH


@pytest.mark.parametrize(
    "pairs",
    [
        [("temperature = 0.7", "temperature = 0.6")],
        [('id = "student"', 'id = "other"')],
        [("seed = 1", "seed = 2")],
        [('"answer"', '"metacognitive"')],
    ],
    ids=["sampling", "model", "seed", "prompt"],
)
def test_other_requests_are_asked(mbt, study, server, pairs):
    assert mbt("run", "study.toml").code == 0
    changed(study, ('"first"', '"second"'), *pairs)

    assert mbt("run", "study.toml").code == 0

    assert sum(server.asked.values()) == 2 * EACH


def test_more_samples_take_the_first_ones_from_another_study(mbt, study, server):
    assert mbt("run", "study.toml").code == 0
    changed(study, ('"first"', '"second"'), ("samples = 2", "samples = 3"))

    assert mbt("run", "study.toml").code == 0

    assert sum(server.asked.values()) == QUESTIONS * 3


def test_replies_without_text_are_lent_too(mbt, study, server):
    server.reply = ""
    assert mbt("run", "study.toml").code == 0
    asked = sum(server.asked.values())
    changed(study, ('"first"', '"second"'))

    assert mbt("run", "study.toml").code == 0

    assert sum(server.asked.values()) == asked


def test_another_model_of_an_endpoint_is_asked(mbt, study, server):
    assert mbt("run", "study.toml").code == 0
    changed(study, ('kind = "openai"', 'kind = "openai", id = "other"'))

    ran = mbt("run", "study.toml", "--replace")

    assert ran.code == 0, ran.err
    assert sum(server.asked.values()) == 2 * EACH
    assert lineage(study, "first", "base")[0]["requests"]["reused"] == 0


@pytest.mark.parametrize("damage", ["gone", "torn", "folder"])
def test_an_index_that_is_damaged_costs_requests_only(mbt, study, server, damage):
    assert mbt("run", "study.toml").code == 0
    (index,) = (study.parent / "cache/replies").glob("*.jsonl")
    if damage == "gone":
        index.unlink()
        index.mkdir()
    elif damage == "torn":
        index.write_bytes(index.read_bytes()[:-20] + b"\xff\n[]\n{}\n")
    else:
        (study.parent / "runs/first").rename(study.parent / "runs/moved")
    changed(study, ('"first"', '"second"'))

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    assert sum(server.asked.values()) == 2 * EACH


def test_the_index_stays_small_and_forgets_the_oldest(tmp_path):
    group = "ab" * 32
    folders = [tmp_path / f"{n:0>100}" for n in range(3_000)]
    for folder in folders:
        reply_index.record_cell(tmp_path, group, folder)
    reply_index.record_cell(tmp_path, group, folders[-1])

    (file,) = (tmp_path / "replies").iterdir()
    assert file.stat().st_size < 1 << 19
    assert reply_index.recorded_cells(tmp_path, group) == folders[-200:]
    assert reply_index.recorded_cells(tmp_path, "ac" * 32) == []
