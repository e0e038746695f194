"""mbt's client beside the floor: one command measures both, interleaved, and prints the table.

    python tests/bench/client.py --stub PATH/stub_chat_server.js --floor PATH/client_floor.py
        [--requests 4000] [--in-flight 512 2048] [--rounds 5] [--folder FOLDER]
        [--command] [--peer oumi=ENV/bin/python]

The stub is a chat endpoint without a model (200 ms, replies of 6 kB), the floor a client of
nothing but aiohttp. mbt's side keeps a journal and writes rows.parquet; its time runs from the
first request to rows.parquet closed. `--command` adds the whole `mbt rollout`, start-up included,
and `--peer NAME=PYTHON`, once for each, a tool of `peers.py` in the environment of that Python.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PORT = 18_137
BASE_URL = f"http://127.0.0.1:{PORT}/v1"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MBT_REUSE": "off"}

STUDY = """
[study]
name = "bench"
seed = 1
max_failed_share = 0

[run]
concurrency = {in_flight}

[sampling.plain]
temperature = 0.6
max_tokens = 2048

[models.stub]
backend = {{ kind = "openai", base_url = "{base_url}" }}
sampling = "plain"

[benchmarks.long]
kind = "hotpotqa"
files = {{ validation = "questions.jsonl" }}

[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = ["long"], split = ["validation"], model = ["stub"] }}
prompt = "answer"
samples = 1
"""


@contextmanager
def stub(path: Path):
    command = ["node", str(path), "--port", str(PORT), "--latency", "200"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health"):
                    break
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def floor(path: Path, requests: int, in_flight: int, _: Path) -> dict[str, float]:
    line = output([sys.executable, str(path), BASE_URL, str(requests), str(in_flight)])
    numbers = [float(n) for n in re.findall(r"[\d.]+", line)]
    return dict(zip(("requests_per_second", "cpu_ms", "memory_mib"), numbers, strict=False))


def durable(_: Path, requests: int, in_flight: int, folder: Path, *more: str) -> dict[str, float]:
    words = [BASE_URL, str(requests), str(in_flight), str(folder), *more]
    return json.loads(output([sys.executable, str(HERE / "durable_client.py"), *words]))


def metered(path: Path, requests: int, in_flight: int, folder: Path) -> dict[str, float]:
    """The same within a budget, each request reserved and counted."""
    return durable(path, requests, in_flight, folder, "metered")


def peer(told: str):
    """A side that asks through another tool: `NAME=PYTHON`."""
    name, _, python = told.partition("=")

    def side(_: Path, requests: int, in_flight: int, folder: Path) -> dict[str, float]:
        words = [name, BASE_URL, str(requests), str(in_flight), str(folder)]
        return json.loads(output([python, str(HERE / "peers.py"), *words]))

    return name, side


def whole_command(_: Path, requests: int, in_flight: int, folder: Path) -> dict[str, float]:
    """`mbt rollout` over a benchmark file with prompts of 7 kB."""
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text(STUDY.format(in_flight=in_flight, base_url=BASE_URL))
    with (folder / "questions.jsonl").open("w") as lines:
        # one at a time: a child's peak memory counts from its parent's size
        lines.writelines(json.dumps(question) + "\n" for question in questions(requests))
    code = "from mbt_cli.app import main; main()"
    run = [sys.executable, "-c", code, "rollout", "study.toml", "-q"]
    started = time.monotonic()
    subprocess.run(run, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
    return {"requests_per_second": requests / (time.monotonic() - started)}


def questions(count: int) -> Iterator[dict]:
    sentence = "This document says nothing about the matter in hand. "
    documents = [[f"Title {n}", [sentence * 13]] for n in range(10)]
    for number in range(count):
        yield {
            "_id": f"q{number}",
            "question": f"Which town is number {number}?",
            "answer": "Paris",
            "type": "bridge",
            "level": "hard",
            "supporting_facts": [["Title 0", 0]],
            "context": documents,
        }


def output(command: list[str]) -> str:
    done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def measure(options: argparse.Namespace, in_flight: int) -> dict[str, list[dict[str, float]]]:
    sides = {"floor": floor, "mbt": durable, "mbt within a budget": metered}
    if options.command:
        sides["mbt rollout"] = whole_command
    sides.update(map(peer, options.peer))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name, side in sides.items():
            folder = options.folder / f"{in_flight}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            found[name].append(side(options.floor, options.requests, in_flight, folder))
            shutil.rmtree(folder, ignore_errors=True)
    return found


def median(runs: list[dict[str, float]], name: str) -> float | None:
    values = [run[name] for run in runs if name in run]
    return statistics.median(values) if values else None


def row(name: str, in_flight: int, runs: list[dict[str, float]], base: float) -> str:
    speed = median(runs, "requests_per_second") or 0.0
    columns = [("cpu_ms", ".2f"), ("memory_mib", ".0f"), ("bytes_per_reply_byte", ".2f")]
    cells = []
    for column, form in columns:
        value = median(runs, column)
        cells.append("" if value is None else format(value, form))
    return f"| {name} | {in_flight} | {speed:.0f} | {speed / base:.2f} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stub", type=Path, required=True)
    parser.add_argument("--floor", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[512, 2_048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("bench-runs"))
    parser.add_argument("--command", action="store_true")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    options = parser.parse_args()
    head = [
        "client",
        "in flight",
        "requests/s",
        "of the floor",
        "cpu ms",
        "MiB",
        "bytes/reply byte",
    ]
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    with stub(options.stub):
        for in_flight in options.in_flight:
            found = measure(options, in_flight)
            base = median(found["floor"], "requests_per_second") or 1.0
            lines += [row(name, in_flight, runs, base) for name, runs in found.items()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
