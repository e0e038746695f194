"""mbt's throughput beside that of `vllm bench serve`: one vLLM, the same prompts, in turns.

    .venv-vllm/bin/python -m tests.bench.vllm_serve FOLDER --model MODEL_FOLDER
        [--requests 32] [--in-flight 16] [--tokens 32] [--rounds 20]

Both send every prompt once as a user's message, greedy, and each reply has exactly `--tokens`
tokens. The prefix cache is off, so that no turn profits from the one before. The time of mbt runs
from the first request until rows.parquet is closed; that of `vllm bench serve` is the duration that
it prints, from its first request to its last reply. Both run in this process, one after the other
without a pause, so that what else the machine does meets both.

Each line has what does not depend on that: the mean number of requests that the server held by its
own metrics, and the processor time of client and server.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import re
import resource
import shutil
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from vllm.benchmarks.serve import add_cli_args, main_async

from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.core.chat import Endpoint, Message
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.programs import Task, one_request
from mbt_cli.core.progress import Silent
from mbt_cli.core.serving import ServerPlace
from mbt_cli.inference.ask import ask
from mbt_cli.inference.queue import RequestBatch
from tests.bench.durable_client import Rows

GREEDY = {"temperature": 0.0, "ignore_eos": True}
TOPICS = ("a harbour", "a mountain village", "the night sky", "an old library", "a long railway")
CPU = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
Side = Callable[[Endpoint, list[str], argparse.Namespace, Path], float]
LATENCY = re.compile(r"^vllm:e2e_request_latency_seconds_sum\S* (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """What one client did once.

    Args:
        speed: Output tokens a second.
        in_flight: Mean number of requests that the server held.
        client: Processor seconds of the client.
        server: Processor seconds of the server's processes.
    """

    speed: float
    in_flight: float
    client: float
    server: float


def prompts(count: int) -> list[str]:
    """Different texts of 40 to 200 words."""
    return [
        f"Story {number}, about {TOPICS[number % len(TOPICS)]}. "
        + "It was late, and nobody had come. " * (5 + number % 23)
        + "Continue the story."
        for number in range(count)
    ]


def by_mbt(
    endpoint: Endpoint, texts: list[str], options: argparse.Namespace, folder: Path
) -> float:
    """The seconds that it takes."""

    def tasks() -> Iterator[Task]:
        for number, text in enumerate(texts):
            message = Message(role="user", content=text)
            yield Task(str(number), 0, one_request("answer", (message,)))

    batch = RequestBatch(
        tasks=tasks,
        total=len(texts),
        purpose="bench",
        study_seed=42,
        identity={"model": options.model},
        sampling={**GREEDY, "max_tokens": options.tokens},
        body=GREEDY,
        open=lambda _: nullcontext(endpoint),
        place=ServerPlace(folder / "server.log", folder / "cache", dict(os.environ)),
        max_tokens=options.tokens,
        run=RunSettings(concurrency=options.in_flight),
        sends_seed=False,  # vLLM's CPU build 0.32 dies of a seeded request
    )
    written, tokens = Rows(folder), []
    started = time.monotonic()
    ask(
        batch,
        folder / "journal",
        Silent(),
        emit=lambda result: (written.add(result), tokens.append(result.reply.completion_tokens)),
    )
    written.finish()
    seconds = time.monotonic() - started
    check(sum(tokens), options)
    return seconds


def by_vllm(
    endpoint: Endpoint, texts: list[str], options: argparse.Namespace, folder: Path
) -> float:
    """The seconds that it takes."""
    lines = (json.dumps({"prompt": text}) for text in texts)
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    flags = {
        "backend": "openai-chat",
        "base-url": endpoint.base_url.removesuffix("/v1"),
        "endpoint": "/v1/chat/completions",
        "model": endpoint.model,
        "tokenizer": options.model,
        "dataset-name": "custom",
        "dataset-path": str(folder / "prompts.jsonl"),
        "custom-output-len": str(options.tokens),
        "num-prompts": str(len(texts)),
        "max-concurrency": str(options.in_flight),
        "temperature": "0",
    }
    switches = ("disable-shuffle", "skip-chat-template", "ignore-eos", "disable-tqdm")
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    with contextlib.redirect_stdout(io.StringIO()):
        found = parser.parse_args([*words, *(f"--{name}" for name in switches)])
        result = asyncio.run(main_async(found))
    check(result["total_output_tokens"], options)
    return result["duration"]


SIDES: dict[str, Side] = {"mbt": by_mbt, "vllm bench serve": by_vllm}


def check(tokens: int, options: argparse.Namespace) -> None:
    """All replies have to be complete."""
    expected = options.requests * options.tokens
    if tokens != expected:
        sys.exit(f"{tokens} tokens instead of {expected}: requests failed or ended early")


def request_seconds(endpoint: Endpoint) -> float:
    """Seconds that all requests so far took together, as the server counts them."""
    with urllib.request.urlopen(endpoint.base_url.removesuffix("/v1") + "/metrics") as answer:
        return sum(map(float, LATENCY.findall(answer.read().decode())))


def own_seconds() -> float:
    """Processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def server_seconds() -> float:
    """Processor seconds of the server's processes: those of the session that mbt began for it."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stats.append(path.read_text().rpartition(")")[2].split())
    # state, parent, group, session, ...; 14 and 15 of proc(5) are user and system time
    sessions = {stat[3] for stat in stats if stat[1] == str(os.getpid())}
    ticks = sum(int(stat[11]) + int(stat[12]) for stat in stats if stat[3] in sessions)
    return ticks / os.sysconf("SC_CLK_TCK")


def turn_of(name: str, endpoint: Endpoint, texts: list[str], options: argparse.Namespace) -> Turn:
    folder = options.folder / "turn"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    before = request_seconds(endpoint), own_seconds(), server_seconds()
    seconds = SIDES[name](endpoint, texts, options, folder)
    after = request_seconds(endpoint), own_seconds(), server_seconds()
    held, client, server = (late - early for late, early in zip(after, before, strict=True))
    return Turn(options.requests * options.tokens / seconds, held / seconds, client, server)


def main(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    backend = VLLMBackend(
        model=options.model,
        serve={"max_model_len": 2048, "dtype": "float32"},
        place={
            "environment": CPU,
            "flags": {"enforce_eager": True, "enable_prefix_caching": False},
        },
    )
    place = ServerPlace(options.folder / "server.log", options.folder / "cache", dict(os.environ))
    texts = prompts(options.requests)
    found: dict[str, list[Turn]] = {name: [] for name in SIDES}
    with backend.open(place) as endpoint:
        os.environ["OPENAI_API_KEY"] = endpoint.api_key or ""  # vLLM's client reads it
        for number in range(options.rounds + 1):
            for name in SIDES:
                turn = turn_of(name, endpoint, texts, options)
                if not number:  # the first round warms both up
                    continue
                found[name].append(turn)
                say(
                    f"{number:2} {name:16} {turn.speed:6,.1f} tokens/s, {turn.in_flight:.2f} in "
                    f"flight, processor {turn.client:.2f} s and {turn.server:.2f} s"
                )
    own, other = found.values()
    ratios = [one.speed / two.speed for one, two in zip(own, other, strict=True)]
    say(f"mbt / vllm bench serve: {statistics.median(ratios):.3f}, median of {len(ratios)} rounds")
    say(f"  all turns together: {time_of(other) / time_of(own):.3f}")
    for what in ("in_flight", "client", "server"):
        one, two = (
            statistics.mean(getattr(turn, what) for turn in turns) for turns in (own, other)
        )
        say(f"  {what.replace('_', ' ')}: {one:.2f} and {two:.2f}")


def time_of(turns: list[Turn]) -> float:
    return sum(1 / turn.speed for turn in turns)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    main(parser.parse_args())
