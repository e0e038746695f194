"""A program of several steps with branches, run through the whole loop in a process of its own.

    python program_client.py http://127.0.0.1:18100/v1 50 8 FOLDER

Each question costs 3 drafts, 2 reviews of each draft one after the other, and 1 final request.
FOLDER gets the journal and results.jsonl: each question's answer and the steps it was made of.
"""

import json
import os
import sys
from pathlib import Path

from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.core.chat import Message
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.programs import Ask, Task
from mbt_cli.core.progress import Silent
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import MbtError
from mbt_cli.inference.ask import ask
from mbt_cli.inference.queue import RequestBatch

STEPS = 3 + 3 * 2 + 1


def prompt(*parts):
    return (Message(role="user", content=" / ".join(str(part)[:100] for part in parts)),)


def reviewed(draft):
    (first,) = yield [Ask("review", prompt("review", draft.text, draft.seed))]
    (second,) = yield [Ask("review", prompt("review again", first.text, first.seed))]
    return second


def program(question):
    drafts = yield [Ask("draft", prompt("draft", question)) for _ in range(3)]
    reviews = yield [reviewed(draft) for draft in drafts]
    seeds = sorted(review.seed for review in reviews)
    (final,) = yield [Ask("final", prompt("final", question, *seeds))]
    return final


def batch_of(base_url, total, in_flight, folder):
    backend = OpenAIBackend(base_url=base_url, id="stub")
    return RequestBatch(
        tasks=lambda: [Task(str(n), 0, program(f"question {n}")) for n in range(total)],
        total=total,
        purpose="test",
        study_seed=42,
        identity=backend.identity(),
        sampling={},
        body={},
        open=backend.open,
        place=ServerPlace(folder / "server.log", folder / "cache", dict(os.environ)),
        max_tokens=64,
        run=RunSettings(concurrency=in_flight, max_attempts=30),
    )


def main(base_url, total, in_flight, folder):
    folder.mkdir(parents=True, exist_ok=True)
    results = []

    def emit(result):
        steps = [[step.path, step.name, step.request.key] for step in result.steps]
        results.append([result.task.question_id, result.reply.seed, steps])

    report = ask(
        batch_of(base_url, total, in_flight, folder), folder / "journal", Silent(), emit=emit
    )
    lines = "".join(f"{json.dumps(result)}\n" for result in results)
    (folder / "results.jsonl").write_text(lines)
    sys.stdout.write(json.dumps({"sent": report.sent, "reused": report.reused}))


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    except MbtError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
