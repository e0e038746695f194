"""How soon `mbt watch` begins with a checkpoint: from its record on disk to its evaluation's start.

    python -m tests.bench.watch_delay FOLDER [--steps 10]

Steps are published as a training does, each a random part of a second after the one before was
evaluated. A harness of others is the evaluation: its cell's lock is the start, which includes the
look at the study, and its program writes the time at which it runs. Prints seconds for each step.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from mbt_cli.core.progress import Silent
from mbt_cli.engine.runner import Runner, RunOptions, Servers, _Steps
from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.settings import Machine

LONGEST = 300
PRESETS = PresetFolders((Path(__file__).parents[2] / "presets",))
TRAINING = "rl/model=qwen"
NOTING = (
    "import json, sys, time; json.dump({'began': time.time()}, open(sys.argv[1] + '/r.json', 'w'))"
)
MANIFEST = """
[study]
name = "delay"
seed = 1

[sampling.plain]
temperature = 0
max_tokens = 32

[models.qwen]
backend = {{ kind = "vllm", model = "Qwen/Qwen3-1.7B" }}
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 6

[harnesses.noted]
argv = [{python}, "-c", {program}, "{{output}}", "{{checkpoint}}"]
results = "r.json"
version = "1"

[harnesses.noted.metrics]
began = {{ value = "began", unit = "seconds" }}

[[stage]]
kind = "train"
name = "rl"
preset = "grpo"
matrix = {{ model = "qwen" }}
questions = {{ benchmark = "tiny", split = "train" }}
reward = "exact_match"

[[stage]]
kind = "harness"
name = "evals"
checkpoints = {{ stage = "rl", where = {{ step = "all" }} }}
matrix = {{ harness = "noted" }}
"""


def wait_for(what):
    """Poll each 5 ms until something is there."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.005)
    raise SystemExit(f"nothing happened within {LONGEST} s")


def publisher(path, runs):
    """What publishes steps of the training as its own process does."""
    runner = Runner(
        load_manifest(path, presets=PRESETS, runs=runs), Machine(runs=runs), RunOptions()
    )
    state = runner.states[TRAINING]
    work = runner._work(state, {}, Servers(), Silent())
    return _Steps(runs, state, work, {}, datetime.now(UTC), Silent())


def measured(folder, runs, steps, number):
    """Seconds from the record of a step to its evaluation's lock, and to its program."""
    weights = folder / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    (weights / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    steps.publish(number, weights)
    record = runs / "delay" / TRAINING / f"step={number}" / "lineage.json"
    written = record.stat().st_mtime
    pattern = f"evals/**/step={number}"
    wait_for(lambda: [*runs.glob(f"delay/{pattern}/lock"), *runs.glob(f"delay/{pattern}/logs")])
    locked = time.time()
    outputs = f"delay/{pattern}/files/**/r.json"
    wait_for(lambda: [*runs.glob(f"delay/{pattern}/lineage.json")])
    began = [json.loads(one.read_text())["began"] for one in runs.glob(outputs)]
    return locked - written, (began[0] - written if began else None)


def say(line):
    print(line, flush=True)  # noqa: T201


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--steps", type=int, default=10)
    options = arguments.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    path, runs = folder / "study.toml", folder / "runs"
    python, program = json.dumps(sys.executable), json.dumps(NOTING)
    path.write_text(MANIFEST.format(python=python, program=program), encoding="utf-8")
    draw, delays = random.Random(0), []
    command = [sys.executable, "-m", "mbt_cli", "watch", "study.toml"]
    with (folder / "watch.log").open("w") as log:
        steps = publisher(path, runs)
        watch = subprocess.Popen(command, cwd=folder, env={**os.environ}, stderr=log, stdout=log)
        try:
            wait_for(lambda: "waiting for" in (folder / "watch.log").read_text())
            for number in range(1, options.steps + 1):
                time.sleep(draw.random())
                locked, began = measured(folder, runs, steps, number)
                delays.append(locked)
                ran = "" if began is None else f", {began:.2f} s to its program"
                say(f"step {number}: {locked:.2f} s to the evaluation's lock{ran}")
        finally:
            watch.terminate()
            watch.wait()
    say(f"median {median(delays):.2f} s, longest {max(delays):.2f} s")


if __name__ == "__main__":
    main()
