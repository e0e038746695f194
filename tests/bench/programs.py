"""Requests per second and processor time of a program of 7 steps beside `single`.

    python tests/bench/programs.py --stub PATH/stub_chat_server.js [--requests 28000]
        [--in-flight 512] [--rounds 3]

The program makes 3 drafts, a review of each one, and a final request; the stub replies after
200 ms with 6 kB. Both sides send the same number of requests, keep a journal and take turns.
The last rollouts wait for three replies one after the other, 0.4 s more than `single`: short runs
show that, and not what a request costs. Time of the processor does not depend on what else runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from client import BASE_URL, ENVIRONMENT, stub

from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.core.chat import Message
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.programs import Ask, Task, one_request
from mbt_cli.core.progress import Silent
from mbt_cli.core.serving import ServerPlace
from mbt_cli.inference.ask import ask
from mbt_cli.inference.queue import RequestBatch

STEPS = 7
_SENTENCE = "This document says nothing about the matter in hand. "


def prompt(*parts):
    text = " / ".join(str(part) for part in parts)
    return (Message(role="user", content=f"{_SENTENCE * 130}{text}"),)


def reviewed(draft):
    (review,) = yield [Ask("review", prompt(draft.seed, (draft.text or "")[:500]))]
    return review


def seven(number):
    drafts = yield [Ask("draft", prompt(number)) for _ in range(3)]
    reviews = yield [reviewed(draft) for draft in drafts]
    (final,) = yield [Ask("final", prompt(number, *(one.seed for one in reviews)))]
    return final


def measured(side: str, requests: int, in_flight: int, folder: Path) -> tuple[float, float]:
    """Requests per second from the first request to the last result, and processor ms of each."""
    backend = OpenAIBackend(base_url=BASE_URL, id="stub")
    count = requests if side == "single" else requests // STEPS

    def steps(number):
        return one_request("answer", prompt(number)) if side == "single" else seven(number)

    batch = RequestBatch(
        tasks=lambda: (Task(str(n), 0, steps(n)) for n in range(count)),
        total=count,
        purpose="bench",
        study_seed=1,
        identity=backend.identity(),
        sampling={},
        body={},
        open=backend.open,
        place=ServerPlace(folder / "server.log", folder / "cache", dict(os.environ)),
        max_tokens=2048,
        run=RunSettings(concurrency=in_flight),
    )
    started, worked = time.monotonic(), time.process_time()
    report = ask(batch, folder / "journal", Silent(), emit=lambda result: None)
    each = 1000 * (time.process_time() - worked) / report.sent
    return report.sent / (time.monotonic() - started), each


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stub", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=28_000)
    parser.add_argument("--in-flight", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=["single", "seven"])
    options = parser.parse_args()
    if options.side:
        with tempfile.TemporaryDirectory() as folder:
            found = measured(options.side, options.requests, options.in_flight, Path(folder))
        sys.stdout.write(json.dumps(found))
        return
    runs: dict[str, list[tuple[float, float]]] = {"single": [], "seven": []}
    with stub(options.stub):
        for _ in range(options.rounds):
            for side, own in runs.items():
                command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
                done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
                own.append(json.loads(done.stdout))
    medians = {
        side: [statistics.median(n) for n in zip(*own, strict=True)] for side, own in runs.items()
    }
    lines = [f"{side}: {n:,.0f} requests/s, {ms:.2f} ms each" for side, (n, ms) in medians.items()]
    ratio = medians["seven"][0] / medians["single"][0]
    sys.stdout.write("\n".join([*lines, f"of single: {ratio:.2f}"]) + "\n")


if __name__ == "__main__":
    main()
