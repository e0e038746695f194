"""The cost of a mirror: the throughput of a rollout with one and without one, on loopback.

    python -m tests.bench.mirror [REQUESTS] [DELAY_MILLISECONDS] [ROUNDS]

The store is moto's server in a process of its own, on the same processors: a real store costs less.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import object_store
from tests.cli.chat_server import ChatServer

STUDY = """
[study]
name = "bench"
seed = 1

[run]
concurrency = 64
mirror = "{mirror}"

[sampling.plain]
temperature = 0
max_tokens = 16

[models.student]
backend = {{ kind = "openai", base_url = "{url}" }}
id = "student"
sampling = "plain"

[benchmarks.b]
kind = "tinyhop"
limit = {questions}

[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = "b", split = "train", model = "student", prompt = "answer" }}
samples = {samples}
"""
_QUESTIONS = 100


class TimedServer(ChatServer):
    """Knows when it was asked."""

    def __init__(self, reply: str, delay_seconds: float) -> None:
        super().__init__(reply, delay_seconds)
        self.times: list[float] = []

    def reply_to(self, body: dict) -> str | None:
        """The reply, and its time."""
        self.times.append(time.monotonic())
        return super().reply_to(body)


def seconds(folder: Path, environment: dict[str, str], server: TimedServer) -> float:
    """Time from the first reply of a run in an empty folder to the last one."""
    for name in ("runs", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    command = [sys.executable, "-m", "mbt_cli", "run", "study.toml", "-q"]
    server.times.clear()
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=600)
    return server.times[-1] - server.times[0]


def main() -> None:
    """Print both times, the best of some runs that alternate, and the difference."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
    delay = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.5
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    best: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as work,
        object_store.running() as objects,
        TimedServer("word " * 500 + "<answer>Oslo</answer>", delay_seconds=delay) as server,
    ):
        folder = Path(work)
        environment = {**os.environ, **objects.environment, "MBT_CACHE": str(folder / "cache")}
        for _ in range(rounds):
            for name in ("off", "on"):
                mirror = "off" if name == "off" else f"{objects.bucket().url}/mbt"
                text = STUDY.format(
                    mirror=mirror,
                    url=server.base_url,
                    questions=_QUESTIONS,
                    samples=requests // _QUESTIONS,
                )
                (folder / "study.toml").write_text(text)
                best[name] = min(best.get(name, float("inf")), seconds(folder, environment, server))
    for name, found in best.items():
        sys.stdout.write(f"mirror {name}: {found:.2f} s, {requests / found:,.0f} requests/s\n")
    sys.stdout.write(f"cost: {best['on'] / best['off'] - 1:+.1%}\n")


if __name__ == "__main__":
    main()
