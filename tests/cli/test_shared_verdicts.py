"""A verdict that another cell has paid for is not asked again."""

import json

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer

STUDY = """
[study]
name = "shared"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0.7
max_tokens = 16

[models.one]
backend = { kind = "canned", replies = ["<answer>Oslo</answer>"] }
sampling = "plain"

[models.two]
backend = { kind = "canned", replies = ["Surely <answer>Oslo</answer>"] }
sampling = "plain"

[models.other]
backend = { kind = "canned", replies = ["<answer>Rome</answer>"] }
sampling = "plain"

[models.judge]
backend = { kind = "openai", base_url = "URL" }
sampling = "plain"

[benchmarks.b]
kind = "question_answer"
files = { validation = "b.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "b", split = "validation", model = ["one", "two", "other"] }
prompt = "answer"
samples = 2

[[stage]]
kind = "judge"
name = "judged"
rollouts = "base"
matrix = { judge = "answer_match" }
judge_model = "judge"
votes = 2
"""
QUESTIONS, SAMPLES, VOTES = 3, 2, 2
EACH = QUESTIONS * SAMPLES * VOTES


@pytest.fixture
def server():
    with ChatServer(json.dumps({"grade": "A"})) as server:
        yield server


@pytest.fixture
def study(workplace, server):
    lines = [{"question": f"Capital {n}?", "answer": "Oslo"} for n in range(QUESTIONS)]
    (workplace / "b.jsonl").write_text("\n".join(map(json.dumps, lines)))
    path = workplace / "study.toml"
    path.write_text(STUDY.replace("URL", server.base_url))
    return path


def cell(study, model):
    folder = next((study.parent / "runs/shared/judged").rglob(f"model={model}"))
    lineages = [json.loads(path.read_text()) for path in folder.rglob("lineage.json")]
    return lineages[0], pl.read_parquet(next(folder.rglob("rows.parquet")))


def test_equal_requests_of_two_cells_are_asked_once(mbt, study, server):
    ran = mbt("run", "study.toml")
    assert ran.code == 0, ran.err

    # `one` and `two` give the same answers, `other` does not
    assert sum(server.asked.values()) == 2 * EACH
    (paid, first), (lent, second) = cell(study, "one"), cell(study, "two")
    assert second["grade"].to_list() == ["A"] * EACH
    assert second["request_key"].to_list() == first["request_key"].to_list()
    # its rows and its lineage say where the replies are from, and no token counts twice
    assert lent["notes"]["asked_in"] == [paid["address"]]
    assert second["attempts"].to_list() == [0] * EACH
    assert lent["requests"]["sent"] == 0
    assert lent["requests"]["reused"] == EACH
    assert paid["tokens"]["completion"] > 0
    assert lent["tokens"]["completion"] == 0
    assert "asked_in" not in cell(study, "other")[0]["notes"]


def test_a_later_run_asks_what_no_cell_has_asked_yet(mbt, study, server):
    assert mbt("run", "study.toml", "--only", "judged/model=one", "--only", "base").code == 0
    assert sum(server.asked.values()) == EACH

    more = study.read_text().replace("votes = 2", "votes = 3")
    study.write_text(more)
    assert mbt("run", "study.toml", "--only", "judged/model=two").code == 0

    assert sum(server.asked.values()) == EACH + QUESTIONS * SAMPLES
    assert sorted(set(cell(study, "two")[1]["attempts"])) == [0, 1]
    # the cell that lent them grows, and takes the new ones over in turn
    assert mbt("run", "study.toml", "--only", "judged/model=one").code == 0
    assert sum(server.asked.values()) == EACH + QUESTIONS * SAMPLES


def test_shards_share_too_and_the_merged_cell_counts_no_token_twice(mbt, study, server):
    assert mbt("run", "study.toml", "--only", "base", "--only", "judged/model=one").code == 0
    for shard in ("1/2", "2/2"):
        ran = mbt("run", "study.toml", "--only", "judged/model=two", "--shard", shard)
        assert ran.code == 0, ran.err
    assert mbt("run", "study.toml", "--only", "judged/model=two").code == 0

    lent, rows = cell(study, "two")
    assert sum(server.asked.values()) == EACH
    assert rows.height == EACH
    assert lent["tokens"]["completion"] == 0


def test_replace_asks_other_requests_and_equal_ones_once(mbt, study, server):
    assert mbt("run", "study.toml").code == 0
    study.write_text(study.read_text().replace("temperature = 0.7", "temperature = 0.5"))
    first = mbt("run", "study.toml", "--replace", "--only", "judged")
    assert first.code == 0, first.err
    assert sum(server.asked.values()) == 4 * EACH

    study.write_text(study.read_text().replace("temperature = 0.5", "temperature = 0.3"))
    for model in ("one", "two"):
        ran = mbt("run", "study.toml", "--replace", "--only", f"judged/model={model}")
        assert ran.code == 0, ran.err

    # an earlier command has asked the same
    assert sum(server.asked.values()) == 5 * EACH


def test_a_damaged_cell_lends_nothing(mbt, study, server):
    assert mbt("run", "study.toml", "--only", "base", "--only", "judged/model=one").code == 0
    rows = next((study.parent / "runs/shared/judged").rglob("rows.parquet"))
    content = bytearray(rows.read_bytes())
    content[len(content) // 4] ^= 1
    rows.write_bytes(content)

    ran = mbt("run", "study.toml", "--only", "judged/model=two")

    assert ran.code == 0, ran.err
    assert sum(server.asked.values()) == 2 * EACH


@pytest.mark.parametrize("shards", [[], ["1/2", "2/2"]], ids=["whole", "shards"])
def test_a_lent_reply_of_another_model_refuses_no_cell(mbt, study, server, shards):
    server.model = {"id": "judge", "root": "/models/a"}
    assert mbt("run", "study.toml", "--only", "base", "--only", "judged/model=one").code == 0
    server.model = {"id": "judge", "root": "/models/b"}
    study.write_text(study.read_text().replace("votes = 2", "votes = 3"))  # some are not lent

    for extra in [*(["--shard", shard] for shard in shards), []]:
        ran = mbt("run", "study.toml", "--only", "judged/model=two", *extra)
        assert ran.code == 0, ran.err

    lineage, rows = cell(study, "two")
    assert lineage["server"]["origin"]["model"]["root"] == "/models/b"
    assert "asked_in" not in lineage["notes"]
    assert set(rows["attempts"]) == {1}
    assert sum(server.asked.values()) == EACH + QUESTIONS * SAMPLES * 3


def test_cells_of_two_models_do_not_both_lend(mbt, study, server):
    text = study.read_text()
    second = text[text.index('[[stage]]\nkind = "judge"') :]
    study.write_text(text + second.replace('"judged"', '"more"').replace("votes = 2", "votes = 3"))
    server.model = {"id": "judge", "root": "/models/a"}
    assert mbt("run", "study.toml", "--only", "base", "--only", "judged/model=one").code == 0
    server.model = {"id": "judge", "root": "/models/b"}
    assert mbt("run", "study.toml", "--only", "more/model=one").code == 0

    ran = mbt("run", "study.toml", "--only", "judged/model=two", "--only", "more/model=two")

    assert ran.code == 0, ran.err
    assert len(cell(study, "two")[0]["notes"]["asked_in"]) == 1
