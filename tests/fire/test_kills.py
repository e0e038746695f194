"""A run that is killed at any point ends like an unbroken one and pays for no reply twice.

The real command runs in real processes against a stub server whose replies depend on the prompt
alone. A kill is SIGKILL at a random moment, SIGKILL before, in or after one of the calls that
change files (`kill_shim.c` counts them), or a signal that asks the run to stop. The same command
then runs again until it ends, and what it leaves must equal what an unbroken run leaves.
"""

import json
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import cycle
from math import inf
from operator import itemgetter
from pathlib import Path

import orjson
import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.fire.conftest import KILLS
from tests.fire.killing import (
    Leaves,
    Place,
    check_artifacts,
    choose_call,
    compiled_shim,
    what_is_left,
)

IN_FLIGHT = 4
KILLS_EACH = 3
"""Kills of one test, one after another, before the run may end."""

STUDY = """
[study]
name = "small"
seed = 1
max_failed_share = 0.9

[run]
concurrency = IN_FLIGHT
max_attempts = 1
drain_seconds = 5

[sampling.plain]
temperature = 0
max_tokens = 512

[sampling.teaching]
temperature = 0
max_tokens = 512

[models.student]
backend = { kind = "openai", base_url = "BASE_URL" }
sampling = "plain"

[models.teacher]
backend = { kind = "openai", base_url = "BASE_URL" }
sampling = "teaching"

[benchmarks.tiny]
kind = "tinyhop"
limit = 6

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["tiny"], split = ["validation"], model = ["student"], prompt = ["answer", "metacognitive"] }
samples = 2

[[stage]]
kind = "judge"
name = "answers"
rollouts = "base"
matrix = { judge = ["answer_match"] }
judge_model = "teacher"

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
verdicts = "answers"
baseline = { prompt = "answer" }
metrics = ["exact_match", "judge_accuracy", "tokens"]
resamples = 100

[[stage]]
kind = "synthesize"
name = "solutions"
make = "solution"
teacher = "teacher"
matrix = { benchmark = ["tiny"], split = ["validation"] }

[[stage]]
kind = "rewrite"
name = "rewritten"
make = "mbt_r"
rollouts = { stage = "base", where = { prompt = "answer" } }
solutions = "solutions"
teacher = "teacher"
traces_per_rollout = 1
gates = { phases = "off" }

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results"]
"""  # noqa: E501  TOML keeps an inline table on one line

_WORDS = ["bridge", "river", "coast", "harbor", "valley", "summit", "garden", "market"]


def request_of(body: dict) -> str:
    """A name for one request, which stands in its reply too."""
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


class Server(ChatServer):
    """Replies by the prompt alone, with the name of the request; refuses some while `fails`."""

    def __init__(self) -> None:
        super().__init__(delay_seconds=0.01)
        self.fails = False

    def reply_to(self, body: dict) -> str | None:
        name = request_of(body)
        text = body["messages"][-1]["content"]
        if self.fails and int(name, 16) % 5 == 0:
            return None
        if "Given answer:" in text:
            return f'{{"grade": "{"AB"[int(name, 16) % 2]}"}} {name}'
        words = " ".join(random.Random(name).choices(_WORDS, k=24))
        whole = " ".join(message["content"] for message in body["messages"])
        if answer := re.search(r"Correct answer: (.*)", whole):
            return f"We look at {name} and {words}. So it is {answer[1]}."
        return f"<think>We think of {words}.</think><answer>{name}</answer>"

    def requests(self) -> Counter[str]:
        """How often each request came."""
        return Counter(request_of(body) for body in self.bodies)


@dataclass(frozen=True)
class Scenario:
    """A study that is prepared by unbroken commands, then made by commands that are killed.

    Args:
        phases: The commands of each phase run side by side, again and again until all ended well.
        fails: Whether the server refuses some requests during the preparation.
    """

    phases: list[list[str]]
    prepare: list[str] = field(default_factory=list)
    fails: bool = False


SCENARIOS = {
    "whole": Scenario([["run study.toml"]]),
    "verbs": Scenario(
        [
            [f"{verb} study.toml"]
            for verb in ("rollout", "judge", "score", "synthesize", "rewrite", "report")
        ],
        prepare=["run study.toml --only questions"],
    ),
    "shards": Scenario(
        [
            [f"run study.toml --only base/prompt=answer --shard {n}/2" for n in (1, 2)],
            ["merge study.toml --only base/prompt=answer"],
            [f"run study.toml --only answers/prompt=answer --shard {n}/3" for n in (1, 2, 3)],
            ["merge study.toml --only answers/prompt=answer"],
            ["run study.toml"],
        ],
        prepare=["run study.toml --only questions"],
    ),
    "several": Scenario([["run study.toml"] * 3]),
    "retry": Scenario([["run study.toml --retry-failed"]], prepare=["run study.toml"], fails=True),
    "replace": Scenario(
        [["run study.toml --replace --set sampling.teaching.temperature=0.5"]],
        prepare=["run study.toml"],
    ),
    "grow": Scenario(
        [["run study.toml --set stage.base.samples=3 --set benchmarks.tiny.limit=7"]],
        prepare=["run study.toml"],
    ),
    "export": Scenario(
        [["export runs/small/base --to exported --write"]],
        prepare=["run study.toml"],
    ),
}


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    return compiled_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@dataclass
class Ready:
    """A scenario's prepared folder, what an unbroken run makes of it, and the calls it takes.

    Args:
        calls: Of every command: each call that changes files, as the shim names it.
        seconds: Of every command: the time from start to end.
    """

    folder: Path
    answers: "Leaves"
    calls: dict[str, list[str]]
    seconds: dict[str, float]


_READY: dict[str, Ready] = {}


@pytest.fixture
def ready(server, shim, tmp_path_factory):
    """Prepare a scenario, and run it unbroken, once per worker."""

    def made(name: str) -> Ready:
        if name not in _READY:
            _READY[name] = make_ready(SCENARIOS[name], server, shim, tmp_path_factory.mktemp(name))
        return _READY[name]

    return made


def make_ready(scenario: Scenario, server: Server, shim: Path, folder: Path) -> Ready:
    prepared = Place(folder / "prepared", shim)
    prepared.folder.mkdir()
    study = STUDY.replace("BASE_URL", server.base_url).replace("IN_FLIGHT", str(IN_FLIGHT))
    (prepared.folder / "study.toml").write_text(study)
    server.fails = scenario.fails
    for command in scenario.prepare:
        prepared.run(command)
    server.fails = False
    unbroken = Place(folder / "unbroken", shim)
    shutil.copytree(prepared.folder, unbroken.folder)
    calls, seconds = {}, {}
    for phase in scenario.phases:
        for number, command in enumerate(phase):
            if command in phase[:number]:  # several processes of one command
                continue
            log = folder / "calls"
            log.unlink(missing_ok=True)
            began = time.monotonic()
            unbroken.run(command, FIRE_AT="0", FIRE_LOG=str(log))
            seconds[command] = time.monotonic() - began
            calls[command] = log.read_text().splitlines() if log.exists() else []
    check_artifacts(unbroken.folder / "runs")
    return Ready(prepared.folder, all_leaves(unbroken.folder), calls, seconds)


def all_leaves(folder: Path) -> Leaves:
    leaves = what_is_left(folder / "runs")
    if (folder / "exported").is_dir():
        leaves |= {f"exported/{k}": v for k, v in what_is_left(folder / "exported").items()}
    return leaves


def start_to_die(
    place: Place, command: str, ready: Ready, how: str, draw: random.Random
) -> tuple[subprocess.Popen, float]:
    """Start a command that is killed on its way, unless it ends before; and when to kill it."""
    if how == "call" and ready.calls[command]:
        at = choose_call(ready.calls[command], draw)
        when = draw.choice(["before", "after", "torn"])
        return place.start(command, FIRE_AT=str(at), FIRE_WHEN=when), inf
    dies_at = time.monotonic() + draw.uniform(0.2, 1) * ready.seconds[command]
    return place.start(command), dies_at


def end_all(dying: list[tuple[subprocess.Popen, float]], number: signal.Signals) -> list[str]:
    """Send the signal to each in its time; what each wrote to stderr."""
    for process, dies_at in sorted(dying, key=itemgetter(1)):
        if dies_at < inf:
            time.sleep(max(0.0, dies_at - time.monotonic()))
            process.send_signal(number)
    return [process.communicate(timeout=300)[1] for process, _ in dying]


def journaled(folder: Path) -> set[str]:
    """Requests whose reply is on the disk."""
    found = set()
    for path in folder.glob("runs/**/journal/*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            record = orjson.loads(line)
            if record["failure"] is None:
                found |= names_in(record["text"] or "")
    for path in folder.glob("runs/**/rows.parquet"):
        rows = pl.scan_parquet(path)
        if "reply" in rows.collect_schema():
            for text in rows.select("reply").collect()["reply"].drop_nulls():
                found |= names_in(text)
    return found


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b[0-9a-f]{16}\b", text))


def drives(kills: int) -> list:
    """Draws of all scenarios, with about this many kills in all."""
    names = list(SCENARIOS)
    numbers = range(max(len(names), kills // KILLS_EACH))
    return [
        pytest.param(name, n, marks=pytest.mark.xdist_group(name))
        for n, name in zip(numbers, cycle(names), strict=False)
    ]


@pytest.mark.parametrize(("name", "number"), drives(KILLS))
def test_a_killed_run_ends_as_an_unbroken_one(
    ready, server, shim, tmp_path, name, number, record_property
):
    scenario, prepared = SCENARIOS[name], ready(name)
    draw = random.Random(f"{name} {number}")
    how = draw.choice(["call", "moment"])
    place = Place(tmp_path / "broken", shim)
    shutil.copytree(prepared.folder, place.folder)
    kept = journaled(place.folder)
    server.bodies.clear()
    saved: dict[str, int] = {}
    kills = 0
    plan = Counter(draw.choices(range(len(scenario.phases)), k=KILLS_EACH))

    for phase, commands in enumerate(scenario.phases):
        for _ in range(plan[phase]):
            dying = [start_to_die(place, command, prepared, how, draw) for command in commands]
            errors = end_all(dying, signal.SIGKILL)
            for (process, _), err in zip(dying, errors, strict=True):
                kills += process.returncode == -signal.SIGKILL
                assert process.returncode in (0, -signal.SIGKILL) or is_refusal(err), err
            for request in journaled(place.folder) - saved.keys():
                saved[request] = server.requests()[request]
        for command in commands:
            if not is_exported(place.folder):
                place.run(command)

    record_property("kills", f"{kills} {name}")
    requests = server.requests()
    assert not {request for request, times in saved.items() if requests[request] != times}
    assert not kept & requests.keys()
    assert sum(times - 1 for times in requests.values()) <= kills * IN_FLIGHT
    left = all_leaves(place.folder)
    assert left.keys() == prepared.answers.keys()
    assert not {path for path, expected in prepared.answers.items() if left[path] != expected}
    check_artifacts(place.folder / "runs")


@pytest.mark.xdist_group("whole")
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGTERM, 75),
        (signal.SIGUSR1, 75),
        (signal.SIGHUP, 75),
        (signal.SIGINT, 130),
    ],
)
def test_a_signal_at_any_moment_loses_and_repeats_nothing(
    ready, server, shim, tmp_path, sent, code, record_property
):
    prepared, draw = ready("whole"), random.Random(sent)
    place = Place(tmp_path / "stopped", shim)
    shutil.copytree(prepared.folder, place.folder)
    server.bodies.clear()
    signals = 0

    for _ in range(max(2, KILLS // 20)):
        asked = len(server.bodies)
        process = place.start("run study.toml")
        while process.poll() is None and len(server.bodies) == asked:
            time.sleep(0.01)
        seconds = draw.uniform(0, 0.15) * prepared.seconds["run study.toml"]
        (err,) = end_all([(process, time.monotonic() + seconds)], sent)
        signals += process.returncode != 0
        assert process.returncode in (0, code), err
        assert "Traceback" not in err
        assert not list(place.folder.glob("runs/**/lock*"))
        assert journaled(place.folder) == server.requests().keys()
    place.run("run study.toml")

    record_property("kills", f"{signals} {sent.name}")
    assert set(server.requests().values()) == {1}
    left = all_leaves(place.folder)
    assert not {path for path, expected in prepared.answers.items() if left[path] != expected}
    check_artifacts(place.folder / "runs")


def is_refusal(err: str) -> bool:
    """Whether another process held the cell, or an export was whole when its process died."""
    return ("is locked by" in err or "is not empty" in err) and "Traceback" not in err


def is_exported(folder: Path) -> bool:
    # a kill between the two `mkdir` calls leaves the folder empty
    return (folder / "exported/README.md").is_file() and not (folder / "exported/.partial").is_dir()
