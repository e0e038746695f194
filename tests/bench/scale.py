"""The cost of large studies: plan, submit, one cell, the status, and rows that are merged.

    python tests/bench/scale.py [--cells 10000 100000] [--rows 100000 400000] [--samples 100]
        [--records 1000000 10000000] [--repository FOLDER]

Studies have rollouts, judgements and scores of 101 models on tinyhop benchmarks. Times are of the
processor (user and system), so that a busy machine does not change them. FOLDER is another checkout
of mbt to measure.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from mbt_cli.cli.manifests import open_manifest
from mbt_cli.core.chat import Reply
from mbt_cli.engine.states import States
from mbt_cli.inference.journal import record_of
from mbt_cli.manifest.cell import Cell
from mbt_cli.store import provenance
from mbt_cli.store.lineage import (
    FileRecord,
    InputRecord,
    Lineage,
    ServerRecord,
    Tokens,
    lineage_json,
    sealed,
)

HERE = Path(__file__).resolve().parents[2]
MODELS = 101
KINDS = 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CELL = "benchmark=b0/split=validation/model=m50"
"""A cell that studies of every size have."""
CHILD = """
import atexit, json, resource, runpy, sys
opened, into = [], sys.argv[1]
sys.addaudithook(lambda event, values: event == "open" and opened.append(str(values[0])))

own_code = (sys.prefix, sys.base_prefix, sys.argv[2])

def tell():
    own = resource.getrusage(resource.RUSAGE_SELF)
    io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    json.dump({
        "cpu_seconds": own.ru_utime + own.ru_stime,
        "memory_mib": int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024,
        "written_mb": int(io["wchar"]) / 1e6,
        "opened": sum(
            not name.startswith(own_code) and "/site-packages/" not in name for name in opened
        ),
        "opened_in_runs": sum("/runs/" in name for name in opened),
        "opened_lineages": sum(name.endswith("lineage.json") for name in opened),
    }, open(into, "w"))

atexit.register(tell)
sys.argv = ["mbt", *sys.argv[3:]]
runpy.run_module("mbt_cli", run_name="__main__", alter_sys=True)
"""
QUEUE = {
    "sbatch": "echo $$",
    "squeue": "true",
    "sacct": "true",
    "scontrol": "true",
}

HEAD = """
[study]
name = "scale"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 64

[groups]
models = [{models}]
benchmarks = [{benchmarks}]
"""
MODEL = """
[models.m{0}]
backend = {{ kind = "canned", replies = ["<answer>Oslo</answer>"] }}
sampling = "plain"
"""
JUDGE = """
[models.judge]
backend = { kind = "canned", replies = ['{"grade": "A"}'] }
sampling = "plain"
"""
BENCHMARK = """
[benchmarks.b{0}]
kind = "tinyhop"
limit = 4
"""
STAGES = """
[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "@benchmarks", split = ["validation"], model = "@models" }
prompt = "answer"
samples = 1

[[stage]]
kind = "judge"
name = "answers"
rollouts = "base"
matrix = { judge = ["answer_match"] }
judge_model = "judge"

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match"]

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results"]
"""


def manifest_of(cells: int) -> str:
    """A study with about this many cells."""
    benchmarks = max(cells // (MODELS * KINDS), 1)
    head = HEAD.format(
        models=", ".join(f'"m{n}"' for n in range(MODELS)),
        benchmarks=", ".join(f'"b{n}"' for n in range(benchmarks)),
    )
    models = "".join(MODEL.format(n) for n in range(MODELS))
    return head + models + JUDGE + "".join(BENCHMARK.format(n) for n in range(benchmarks)) + STAGES


def finish(manifest: Path, runs: Path, is_done: Callable[[Cell], bool]) -> int:
    """Write artifacts of chosen cells as if they had run: one byte of rows and a whole lineage."""
    opened, _ = open_manifest(manifest, (), None)
    origin, count = provenance.collected(), 0
    made: dict[str, Lineage] = {}
    for number, state in enumerate(States(opened, runs / "none").all()):
        cell = state.cell
        made[cell.address] = lineage = sealed(
            Lineage(
                study=opened.study,
                stage=cell.stage.name,
                kind=cell.kind,
                address=cell.address,
                fingerprint=state.fingerprint,
                base_fingerprint=state.base_fingerprint,
                sizes=dict(state.sizes),
                spec=cell.spec,
                started_at=NOW,
                files={"rows.parquet": FileRecord(bytes=1, sha256=f"{number:064x}")},
                inputs={
                    a: InputRecord(
                        fingerprint=made[a].fingerprint,
                        sha256=made[a].content_sha256(),
                        lineage_sha256=made[a].fingerprint,
                    )
                    for a in cell.needs
                },
                model={r: m.spec() for r, m in cell.resolution.models.items()},
                server=ServerRecord(),
                seconds=10,
                rows=4,
                tokens=Tokens(prompt=4_000, completion=2_000),
                columns={f"column_{n}": "String" for n in range(17)},
                code=origin.code,
                packages=origin.packages,
                host=origin.host,
            )
        )
        folder = runs / opened.study / cell.address
        if is_done(cell) and not folder.exists():
            folder.mkdir(parents=True)
            (folder / "rows.parquet").write_bytes(b"x")
            (folder / "lineage.json").write_bytes(lineage_json(lineage))
            count += 1
    return count


class Bench:
    """Runs `mbt` of a checkout in a folder of its own, beside stand-ins for Slurm."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder = folder
        self.repository = repository
        tools = folder / "bin"
        tools.mkdir()
        for name, text in QUEUE.items():
            (tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
        self._environment = {
            **os.environ,
            "MBT_REUSE": "off",
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(repository),
            "MBT_RUNS": str(folder / "runs"),
        }

    def mbt(self, *words: str, out: str = "out.txt") -> dict[str, float]:
        """Run `mbt WORDS`; what it took."""
        with (self.folder / out).open("wb") as stdout:
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    CHILD,
                    "took.json",
                    str(self.repository / "mbt_cli"),
                    *words,
                ],
                cwd=self.folder,
                env=self._environment,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        if done.returncode:
            sys.exit(f"mbt {' '.join(words)}: {done.stderr}")
        took: dict[str, float] = json.loads((self.folder / "took.json").read_text())
        return took

    def reset(self) -> None:
        shutil.rmtree(self.folder / "runs", ignore_errors=True)


def show(what: str, **numbers: float) -> None:
    shown = "  ".join(f"{name} {value:,.1f}" for name, value in numbers.items())
    sys.stdout.write(f"{what:56s} {shown}\n")
    sys.stdout.flush()


def cost(took: dict[str, float]) -> dict[str, float]:
    return {"cpu s": took["cpu_seconds"], "MiB": took["memory_mib"]}


def measure_cells(bench: Bench, cells: int) -> None:
    bench.reset()
    manifest = bench.folder / "study.toml"
    manifest.write_text(manifest_of(cells))
    show(f"plan, {cells:,} cells, none made", **cost(bench.mbt("plan", "study.toml", out="plan")))
    if cells <= 10_000:
        measure_jobs(bench, cells)
    finish(manifest, bench.folder / "runs", lambda _: True)
    show(f"plan, {cells:,} cells, all made", **cost(bench.mbt("plan", "study.toml")))


def measure_jobs(bench: Bench, cells: int) -> None:
    """Submitting, the status, and single cells of a study whose other cells are made."""
    took = bench.mbt("submit", "plan", "--slurm", "--preset", "one-gpu")
    show(f"submit, {cells:,} cells", **cost(took), MB_written=took["written_mb"])
    show(f"status, {cells:,} cells, none made", **cost(bench.mbt("status", "scale")))
    bench.mbt("run", "study.toml", "-q", "--only", f"base/{CELL}")
    others = ("questions", "rollout", "judge")
    finish(bench.folder / "study.toml", bench.folder / "runs", lambda cell: cell.kind in others)
    shutil.rmtree(bench.folder / "runs" / "scale" / "answers" / CELL)
    for stage in ("answers", "scores"):
        took = bench.mbt("run", "study.toml", "-q", "--only", f"{stage}/{CELL}")
        files = {name: took[name] for name in ("opened", "opened_in_runs", "opened_lineages")}
        show(f"one cell of `{stage}` among {cells:,}", **cost(took), **files)
    show(f"status, {cells:,} cells, two thirds made", **cost(bench.mbt("status", "scale")))


ROWS = """
[study]
name = "rows"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 64

[models.m]
backend = {{ kind = "canned", replies = ["<answer>Oslo</answer>"] }}
sampling = "plain"

[benchmarks.b]
kind = "question_answer"
files = {{ validation = "questions.jsonl" }}

[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = ["b"], split = ["validation"], model = ["m"] }}
prompt = "answer"
samples = {samples}
"""


def measure_rows(bench: Bench, rows: int, samples: int) -> None:
    """Merging the rows of a cell whose four shards are asked."""
    bench.reset()
    questions = rows // samples
    lines = [
        json.dumps({"id": f"q{n}", "question": f"{n}?", "answer": "Oslo"}) for n in range(questions)
    ]
    (bench.folder / "questions.jsonl").write_text("\n".join(lines))
    (bench.folder / "rows.toml").write_text(ROWS.format(samples=samples))
    bench.mbt("run", "rows.toml", "-q", "--only", "questions")
    for shard in range(1, 5):
        bench.mbt("run", "rows.toml", "-q", "--only", "base", "--shard", f"{shard}/4")
    took = bench.mbt("merge", "rows.toml", "-q", "--only", "base")
    cell = next((bench.folder / "runs" / "rows" / "base").rglob("rows.parquet"))
    show(f"merging {rows:,} rows", **cost(took), MB_of_rows=cell.stat().st_size / 1e6)


INDEX = """
import os, sys
from pathlib import Path
from mbt_cli.inference.journal import JournalIndex
with JournalIndex(Path(sys.argv[1])) as index:
    status = Path("/proc/self/status").read_text()
    memory = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(len(index), memory, sum(os.times()[:2]))
"""


def measure_index(folder: Path, records: int) -> None:
    """Opening the journal of a cell: what grows with its rows when shards are merged."""
    journal = folder / "journal"
    shutil.rmtree(journal, ignore_errors=True)
    reply = Reply(text="<answer>Oslo</answer>", finish_reason="stop", seconds=0.5, seed=1)
    journal.mkdir()
    for shard in range(4):
        with (journal / f"replies-{shard}.jsonl").open("wb") as file:
            for number in range(shard, records, 4):
                file.write(record_of(sha256(str(number).encode()).hexdigest(), reply, 0))
    size = sum(path.stat().st_size for path in journal.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", INDEX, str(journal)], capture_output=True, text=True, check=True
    )
    _, memory, seconds = map(float, done.stdout.split())
    show(f"index of {records:,} records", **{"cpu s": seconds, "MiB": memory, "MB": size / 1e6})
    shutil.rmtree(journal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 400_000])
    parser.add_argument("--records", type=int, nargs="*", default=[1_000_000, 3_000_000])
    parser.add_argument("--samples", type=int, default=100, help="rows of each question")
    parser.add_argument("--repository", type=Path, default=HERE)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), chosen.repository.resolve())
        for cells in chosen.cells:
            measure_cells(bench, cells)
        for rows in chosen.rows:
            measure_rows(bench, rows, chosen.samples)
        for records in chosen.records:
            measure_index(Path(folder), records)


if __name__ == "__main__":
    main()
