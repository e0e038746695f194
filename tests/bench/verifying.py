"""Verdicts of a verifier over many rollouts: rows a second, and memory of the process.

    python -m tests.bench.verifying [ROWS ...]

Rollouts of 2 kB with a number at their end come from a Parquet file (GSM8K's layout, 500 questions
with many samples each); the judge `verifier` checks every one. Memory is the peak of the process
that runs the judge stage alone, without what the operating system maps from files.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

QUESTIONS = 500
STUDY = """
[study]
name = "v"

[benchmarks.sums]
kind = "gsm8k"
files = { test = "test.jsonl" }

[[stage]]
kind = "rollout"
source = "rollouts.parquet"
matrix = { benchmark = "sums", model = "m" }
samples = SAMPLES

[[stage]]
kind = "judge"
name = "checked"
rollouts = "rollout"
matrix = { judge = "verifier" }

[[stage]]
kind = "score"
rollouts = "rollout"
verdicts = "checked"
metrics = ["verified", { kind = "pass_at_k", of = "verified", k = [1] }]
"""


def write_study(folder: Path, rows: int) -> None:
    samples = rows // QUESTIONS
    texts = [f"What is {n} and {n}?" for n in range(QUESTIONS)]
    (folder / "test.jsonl").write_text(
        "".join(
            json.dumps({"question": text, "answer": f"Add.\n#### {2 * n}"}) + "\n"
            for n, text in enumerate(texts)
        )
    )
    ids = [f"gsm8k-{hashlib.sha256(text.encode()).hexdigest()[:16]}" for text in texts]
    filler = "We add the two numbers and look at what comes out of it. " * 35
    frame = pl.DataFrame({"question_id": ids, "n": range(QUESTIONS)}).join(
        pl.DataFrame({"sample": range(samples)}), how="cross"
    )
    number = pl.col("n") * 2 + (pl.col("sample") % 2)
    frame.select(
        "question_id",
        "sample",
        reply=pl.format("sample {}: " + filler + "<answer>{}</answer>", "sample", number),
    ).write_parquet(folder / "rollouts.parquet")
    (folder / "study.toml").write_text(STUDY.replace("SAMPLES", str(samples)))


def run(folder: Path, *arguments: str) -> tuple[float, float]:
    """Wall seconds and peak MiB of one command."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "mbt_cli", "run", "study.toml", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, "MBT_NO_DOTENV": "1"},
    )
    return time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> None:
    for rows in [int(word) for word in sys.argv[1:]] or [100_000, 200_000]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_study(folder, rows)
            child = (
                "import sys; from pathlib import Path; from tests.bench.verifying import run; "
                f"sys.stdout.write('%f %f' % run(Path({name!r}), *sys.argv[1:]))"
            )
            for label, only in (
                ("import", ("--only", "rollout")),
                ("verify", ("--only", "checked")),
                ("score", ("--only", "score")),
            ):
                # a process of its own, so that the peak is that of one command
                done = subprocess.run(
                    [sys.executable, "-c", child, *only],
                    check=True, capture_output=True, text=True,
                )  # fmt: skip
                seconds, peak = map(float, done.stdout.split())
                sys.stdout.write(
                    f"{label} {rows:,} rows: {seconds:.0f} s, {rows / seconds:,.0f} rows/s, "
                    f"{peak:.0f} MiB\n"
                )


if __name__ == "__main__":
    main()
