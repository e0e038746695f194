"""`mbt export`: the good rows, a card and the lineage, which can be read back as a source."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import polars as pl
import pytest

HEAD = """
[study]
name = "made"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 32

[models.teacher]
backend = { kind = "scripted" }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 4

[[stage]]
kind = "synthesize"
name = "mbt-s"
matrix = { benchmark = ["tiny"], split = ["train"] }
make = "mbt_s"
teacher = "teacher"
"""
TAKEN = """
[study]
name = "taken"
seed = 1
max_failed_share = 0

[benchmarks.tiny]
kind = "tinyhop"
limit = 5

[[stage]]
kind = "synthesize"
name = "mbt-s"
matrix = { benchmark = ["tiny"], split = ["train"] }
make = "mbt_s"

[stage.source]
from = "hub:out"
config = "{benchmark}"
columns = { question_id = "question_id", trace_id = "trace_id", trace = "trace" }
"""


@pytest.fixture
def made(mbt, workplace):
    (workplace / "made.toml").write_text(HEAD)
    assert mbt("run", "made.toml", "-q").code == 0
    return workplace


def test_nothing_is_written_without_write(mbt, made):
    told = mbt("export", "runs/made/mbt-s", "--to", "out")

    assert told.code == 0, told.err
    assert "nothing is written" in told.out
    assert "private" in told.out
    assert not (made / "out").exists()


def test_a_folder_holds_shards_card_and_lineage_and_reads_back_as_a_source(mbt, made):
    assert mbt("export", "runs/made/mbt-s", "--to", "out", "--write").code == 0

    card = (made / "out/README.md").read_text()
    assert "| tiny | train | 4 | 0 |" in card
    assert "no model: scripted" in card
    assert "sources: none: made by rule" in card
    lineage = json.loads((made / "out/lineage/tiny-train.json").read_text())
    assert lineage["address"] == "mbt-s/benchmark=tiny/split=train"
    assert "host" not in lineage
    (made / "taken.toml").write_text(TAKEN)
    ran = mbt("run", "taken.toml")
    assert ran.code == 0, ran.err
    where = "mbt-s/benchmark=tiny/split=train/rows.parquet"
    first, second = (
        pl.read_parquet(made / "runs" / study / where, hive_partitioning=False)
        for study in ("made", "taken")
    )
    # the export does not contain the fifth question
    assert second["failure"].to_list() == [None] * 4 + ["not_in_source"]
    assert second["trace"].to_list()[:4] == first["trace"].to_list()
    again = mbt("export", "runs/made/mbt-s", "--to", "out", "--write")
    assert (again.code, "is not empty" in again.err) == (2, True)


class _Hub(BaseHTTPRequestHandler):
    """Takes a new repository and one commit."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        if "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            answer = {"files": files}
        else:
            url = "https://huggingface.co/datasets/org/made"
            answer = {"url": url, "commitUrl": f"{url}/commit/1", "commitOid": "1"}
        self._send(answer)

    def do_GET(self):
        self._send({"id": "org/made", "sha": "1", "siblings": []})

    def _send(self, answer):
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def test_the_hub_receives_a_private_data_set_in_one_commit(mbt, made):
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"

        pushed = mbt(
            "export",
            "runs/made/mbt-s",
            "--to",
            "hub:org/made",
            "--write",
            HF_ENDPOINT=endpoint,
            HF_TOKEN="hf_testtoken",
            HF_HOME=str(made / "hf"),
        )
        server.shutdown()

    assert pushed.code == 0, pushed.err
    assert "written:" in pushed.out
    (created,) = (json.loads(body) for path, _, body in server.asked if "repos/create" in path)
    # older clients say `private`, newer ones `visibility`
    is_private = created.get("private") is True or created.get("visibility") == "private"
    assert (created["name"], is_private) == ("made", True)
    (commit,) = (body for path, _, body in server.asked if "/commit/" in path)
    sent = {
        line["value"]["path"]
        for line in map(json.loads, commit.splitlines())
        if line["key"] == "file"
    }
    assert sent == {
        "README.md",
        "lineage/tiny-train.json",
        "tiny/train-00000-of-00001.parquet",
    }
    assert {key for _, key, _ in server.asked} == {"Bearer hf_testtoken"}
    assert "hf_testtoken" not in pushed.out + pushed.err


def test_without_a_token_no_request_goes_to_the_hub(mbt, made):
    told = mbt("export", "runs/made/mbt-s", "--to", "hub:a/b", HF_TOKEN="")
    refused = mbt("export", "runs/made/mbt-s", "--to", "hub:a/b", "--write", HF_TOKEN="")

    assert told.code == 0
    assert "`--write` would be refused: cannot write to `hub:a/b` without a token" in told.err
    assert refused.code == 2
    assert "without a token" in refused.err
