"""A run that is killed at any point ends like an unbroken one and pays for no reply twice.

The real command runs in real processes against a stub server whose replies depend on the prompt
alone. A kill is SIGKILL at a random moment, SIGKILL before, in or after one of the calls that
change files (`kill_shim.c` counts them), or a signal that asks the run to stop. The same command
then runs again until it ends, and what it leaves must equal what an unbroken run leaves.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import cycle
from pathlib import Path

import orjson
import polars as pl
import pytest

from mbt_cli.store.lineage import Lineage, read_lineage
from mbt_cli.store.reading import finished_cells, verify
from tests.cli.chat_server import ChatServer
from tests.fire.conftest import KILLS

IN_FLIGHT = 4
KILLS_EACH = 3
"""Kills of one test, one after another, before the run may end."""
SHIM = Path(__file__).with_name("kill_shim.c")

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
    """The library that kills a process at a chosen call."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    library = tmp_path_factory.mktemp("shim") / "kill_shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
    return library


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


class Place:
    """A folder with a study, in which commands run and are killed."""

    def __init__(self, folder: Path, shim: Path, draw: random.Random) -> None:
        self.folder, self.shim, self.draw = folder, shim, draw

    def start(self, command: str, **fire: str) -> subprocess.Popen:
        """Start `mbt COMMAND`; with `fire`, the shim is in the process."""
        if fire:
            fire = {
                "LD_PRELOAD": str(self.shim),
                "FIRE_ROOT": str(self.folder),
                "FIRE_COMMAND": "mbt_cli",
                **fire,
            }
        return subprocess.Popen(
            [sys.executable, "-m", "mbt_cli", *command.split()],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "MBT_NO_DOTENV": "1", **fire},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str, **fire: str) -> None:
        process = self.start(command, **fire)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, (command, err)

    def journaled(self) -> set[str]:
        """Requests whose reply is on the disk."""
        found = set()
        for path in self.folder.glob("runs/**/journal/*.jsonl"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                record = orjson.loads(line)
                if record["failure"] is None:
                    found |= names_in(record["text"] or "")
        for path in self.folder.glob("runs/**/rows.parquet"):
            rows = pl.scan_parquet(path)
            if "reply" in rows.collect_schema():
                for text in rows.select("reply").collect()["reply"].drop_nulls():
                    found |= names_in(text)
        return found


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b[0-9a-f]{16}\b", text))


Leaves = dict[str, object]

_VOLATILE = {"seconds", "started_at", "requests", "files", "inputs", "host", "code", "packages"}
_TEMPORARY = re.compile(
    r"(^|/)(lock.*|\..*|.*\.partial|.*\.draft|.*\.probe|tmp[^/]*|failure\.json|journal)(/|$)"
)


def what_is_left(folder: Path) -> Leaves:
    """Everything of a study that must not depend on kills, by file."""
    leaves: Leaves = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or "/logs/" in name or name.startswith(".replaced/"):
            continue
        assert not _TEMPORARY.search(name), f"{name} is left"
        if path.name == "lineage.json":
            lineage = json.loads(path.read_bytes())
            inputs = {a: record["fingerprint"] for a, record in lineage["inputs"].items()}
            kept = {key: value for key, value in lineage.items() if key not in _VOLATILE}
            leaves[name] = {**kept, "inputs": inputs, "files": sorted(lineage["files"])}
        elif path.suffix == ".parquet":
            rows = pl.read_parquet(path, hive_partitioning=False)
            leaves[name] = rows.drop("seconds", strict=False).to_dicts()
        elif "/report/" not in name:  # the page shows durations and counts of requests
            leaves[name] = path.read_bytes()
    return leaves


def check_artifacts(runs: Path) -> None:
    """Every artifact, replaced ones included, is whole, and was made from what is there."""
    studies = [path for path in runs.glob("*") if not path.name.startswith(".")]
    for study in studies:
        cells = finished_cells(study)
        by_address = {lineage.address: lineage for _, lineage in cells}
        for folder, lineage in cells:
            assert verify(folder) == []
            for address, record in lineage.inputs.items():
                assert by_address[address].content_sha256() == record.sha256, lineage.address
    for folder in moved_aside(runs):
        assert verify(folder) == []


def moved_aside(runs: Path) -> dict[Path, Lineage]:
    """Artifacts that were replaced; each folder with a part of one counts."""
    parts = {path.parent for path in runs.glob(".replaced/**/rows.parquet")}
    parts |= {path.parent for path in runs.glob(".replaced/**/lineage.json")}
    found = {}
    for folder in sorted(parts):
        lineage = read_lineage(folder)
        assert lineage is not None, f"{folder} has no lineage"
        found[folder] = lineage
    return found


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
    prepared = Place(folder / "prepared", shim, random.Random(0))
    prepared.folder.mkdir()
    study = STUDY.replace("BASE_URL", server.base_url).replace("IN_FLIGHT", str(IN_FLIGHT))
    (prepared.folder / "study.toml").write_text(study)
    server.fails = scenario.fails
    for command in scenario.prepare:
        prepared.run(command)
    server.fails = False
    unbroken = Place(folder / "unbroken", shim, random.Random(0))
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


def choose_call(calls: list[str], draw: random.Random) -> int:
    """The number of one call, from 1; each kind of call is as likely as any other."""
    kinds: dict[str, list[int]] = {}
    for number, call in enumerate(calls, 1):
        kind = re.sub(r"[0-9a-f]{12,}|\d+|=[^/]*", "", call)
        kinds.setdefault(kind, []).append(number)
    return draw.choice(kinds[draw.choice(sorted(kinds))])


def start_to_die(place: Place, command: str, ready: Ready, how: str) -> subprocess.Popen:
    """Start a command that is killed on its way, unless it ends before."""
    if how == "call" and ready.calls[command]:
        at = choose_call(ready.calls[command], place.draw)
        when = place.draw.choice(["before", "after", "torn"])
        return place.start(command, FIRE_AT=str(at), FIRE_WHEN=when)
    process = place.start(command)
    process.dies_at = time.monotonic() + place.draw.uniform(0.2, 1) * ready.seconds[command]
    return process


def end_all(processes: list[subprocess.Popen], number: signal.Signals) -> list[str]:
    """Send the signal to those that are to die, in their order; what each wrote to stderr."""
    for process in sorted(processes, key=lambda one: getattr(one, "dies_at", 0.0)):
        if (dies_at := getattr(process, "dies_at", None)) is not None:
            time.sleep(max(0.0, dies_at - time.monotonic()))
            process.send_signal(number)
    return [process.communicate(timeout=300)[1] for process in processes]


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
    place = Place(tmp_path / "broken", shim, draw)
    shutil.copytree(prepared.folder, place.folder)
    kept = place.journaled()
    server.bodies.clear()
    saved: dict[str, int] = {}
    kills = 0
    plan = Counter(draw.choices(range(len(scenario.phases)), k=KILLS_EACH))

    for phase, commands in enumerate(scenario.phases):
        for _ in range(plan[phase]):
            dying = [start_to_die(place, command, prepared, how) for command in commands]
            errors = end_all(dying, signal.SIGKILL)
            for process, err in zip(dying, errors, strict=True):
                kills += process.returncode == -signal.SIGKILL
                assert process.returncode in (0, -signal.SIGKILL) or is_refusal(err), err
            for request in place.journaled() - saved.keys():
                saved[request] = server.requests()[request]
        for command in commands:
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


def is_refusal(err: str) -> bool:
    """Whether a process ended because another one held the cell."""
    return "is locked by" in err and "Traceback" not in err
