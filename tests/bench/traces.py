"""Rewrites from the canned backend: rows a second and peak memory of the stage.

    python tests/bench/traces.py FOLDER [--rollouts 100000] [--traces 4]
        [--document-words 100] [--text-words 250]

Every question has ten documents; rollouts and solutions come from files (`source`), and only the
rewrite stage is measured, in a process of its own.
"""

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import polars as pl

from mbt_cli.core import rows

MANIFEST = """
[study]
name = "bench"
seed = 1
max_failed_share = 0
[sampling.plain]
temperature = 0
max_tokens = 64
[models.teacher]
backend = {{ kind = "canned", replies = [{replies}] }}
sampling = "plain"
[benchmarks.made]
kind = "hotpotqa"
files = {{ train = "questions.parquet" }}
[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = ["made"], split = ["train"], model = ["student"] }}
samples = 1
source = "rollouts.parquet"
[[stage]]
kind = "synthesize"
name = "solutions"
matrix = {{ benchmark = ["made"], split = ["train"] }}
make = "solution"
source = "solutions.parquet"
[[stage]]
kind = "rewrite"
name = "mbt-r"
make = "mbt_r"
rollouts = "base"
solutions = "solutions"
teacher = "teacher"
traces_per_rollout = {traces}
gates = {{ conclusion = false, phases = "off" }}
"""
REPLIES = 16
DOCUMENTS = 10
BATCH = 10_000


def words(draws, count):
    return " ".join(draws.choices(VOCABULARY, k=count))


VOCABULARY = [f"w{number:x}" for number in range(3000)]


def write_inputs(folder, count, document_words, text_words):
    draws = random.Random(1)
    texts = [words(draws, document_words) for _ in range(500)]
    parts = {"questions": [], "rollouts": [], "solutions": []}
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        documents = [
            [{"title": f"T{k}", "sentences": [draws.choice(texts)]} for k in range(DOCUMENTS)]
            for _ in numbers
        ]
        records = [
            {
                **dict.fromkeys(rows.QUESTIONS),
                "question_id": f"q{n}",
                "position": n,
                "question": f"Which city is number {n}?",
                "answer": "Fernbridge",
                "context": context,
            }
            for n, context in zip(numbers, documents, strict=True)
        ]
        parts["questions"].append(pl.DataFrame(records, schema=rows.QUESTIONS))
        for name, key in (("rollouts", "reply"), ("solutions", "trace")):
            told = [f"{words(draws, text_words)} Fernbridge." for _ in numbers]
            ids = [f"q{n}" for n in numbers]
            parts[name].append(pl.DataFrame({"question_id": ids, key: told}))
    for name, frames in parts.items():
        pl.concat(frames).write_parquet(folder / f"{name}.parquet")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--traces", type=int, default=4)
    parser.add_argument("--document-words", type=int, default=100)
    parser.add_argument("--text-words", type=int, default=250)
    told = parser.parse_args()
    told.folder.mkdir(parents=True, exist_ok=True)
    write_inputs(told.folder, told.rollouts, told.document_words, told.text_words)
    draws = random.Random(2)
    replies = ", ".join(f'"{words(draws, told.text_words)} Fernbridge."' for _ in range(REPLIES))
    manifest = told.folder / "bench.toml"
    manifest.write_text(MANIFEST.format(replies=replies, traces=told.traces))
    mbt = [sys.executable, "-m", "mbt_cli", "run", "bench.toml", "-q", "--only"]
    for stage in ("base", "solutions"):
        subprocess.run([*mbt, stage], cwd=told.folder, check=True)
    started = time.monotonic()
    measured = ["/usr/bin/time", "-v", *mbt, "mbt-r"]
    done = subprocess.run(measured, cwd=told.folder, check=True, capture_output=True, text=True)
    seconds = time.monotonic() - started
    made = told.rollouts * told.traces
    peak = next(line for line in done.stderr.splitlines() if "Maximum resident" in line)
    kib = int(peak.rpartition(" ")[2])
    cpu = sum(
        float(line.rpartition(" ")[2])
        for line in done.stderr.splitlines()
        if "time (seconds)" in line
    )
    sys.stdout.write(f"{made} traces in {seconds:.0f} s: {made / seconds:,.0f} rows/s, ")
    sys.stdout.write(f"{cpu:.0f} s of processor time: {made / cpu:,.0f} rows/s, ")
    sys.stdout.write(f"peak {kib / 1024:,.0f} MiB\n")


if __name__ == "__main__":
    main()
