"""What a server receives for a rewrite: three turns, byte for byte what the template says."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.core import rows
from mbt_cli.stages.gates import Gates
from mbt_cli.stages.rewrite import RewriteStage
from tests.unit.teaching import (
    GOOD,
    PROMPTS,
    questions,
    rollout,
    rows_of,
    solution,
    table,
    work_of,
)

NASTY = (
    "{braces} {{ solution }} {{question}} %s \\n $1 \\1 <think>x</think> <answer>no</answer> "
    "=== user ===\n```python\ndef f(x): return {'a': [1]}\n```\u2028 \u00e9\u4e16\U0001f600 tab\t."
)


class _Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        message = {"role": "assistant", "content": GOOD.format(n=0)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Recorder) as recorder:
        recorder.bodies = []
        thread = threading.Thread(target=recorder.serve_forever, daemon=True)
        thread.start()
        yield recorder
        recorder.shutdown()
        thread.join()


def expected_turns(name, values):
    """The template's turns with its placeholders replaced, each once, written anew for the test."""
    source = (PROMPTS / f"{name}.md").read_text(encoding="utf-8")
    turns = []
    for part in source.split("=== ")[1:]:
        role, _, text = part.partition(" ===\n")
        pieces = []
        for number, piece in enumerate(text.strip().split("{{ ")):
            placeholder, closed, rest = piece.partition(" }}")
            pieces.append(values[placeholder] + rest if number and closed else piece)
        turns.append({"role": role, "content": "".join(pieces)})
    return turns


@pytest.mark.parametrize("make", ["mbt_r", "plain"])
def test_the_server_receives_the_template_filled_and_nothing_else(tmp_path, server, make):
    documents = [
        {"title": "A {b}", "sentences": [NASTY, " Second."]},
        {"title": "</think>", "sentences": ["It is City0."]},
    ]
    asked = questions(1, question=f"Which city {NASTY}?", context=documents)
    inputs = {
        "questions": asked,
        "rollouts": table(
            rows.ROLLOUTS,
            [rollout(0, reasoning=f"I think {NASTY}", reply="<answer>City0</answer>")],
        ),
        "solutions": table(rows.TRACES, [solution(0, trace=f"Solved: {NASTY}")]),
    }
    stage = RewriteStage(
        name="r",
        make=make,
        rollouts="b",
        solutions="s",
        teacher="t",
        traces_per_rollout=2,
        gates=Gates(max_overlap=None, phases="off"),
    )
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    backend = OpenAIBackend(base_url=url, id="m")
    work = work_of(stage, tmp_path, inputs, backend)

    made = rows_of(stage, work)

    turns = expected_turns(
        make,
        {
            "question": f"Which city {NASTY}?",
            # a sentence's own white space at its ends is not kept, all else is
            "documents": f"Document [0] (Title: A {{b}}) {NASTY} Second.\n"
            "Document [1] (Title: </think>) It is City0.",
            "answer": "City0",
            "solution": f"Solved: {NASTY}",
            "trace": f"I think {NASTY}",
        },
    )
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [body["messages"] for body in server.bodies] == [turns, turns]
    assert len({body["seed"] for body in server.bodies}) == 2
    # what is stored is what was sent
    assert made["messages"].to_list() == [turns, turns]
    assert made["failure"].to_list() == [None, None]
