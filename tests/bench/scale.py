"""The cost of large studies: plan, submit, one cell, the status, and rows that are merged.

    python tests/bench/scale.py [--cells 10000 100000] [--rows 10000000] [--only NAME ...]

Studies have rollouts, judgements and scores of 101 models on tinyhop benchmarks. Times are of the
processor (user and system), so that a busy machine does not change them.
"""

from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = 101
KINDS = 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)

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


def finish(manifest: Path, runs: Path, is_done) -> int:
    """Write artifacts of chosen cells as if they had run: one byte of rows and a whole lineage."""
    from mbt_cli.cli.manifests import open_manifest
    from mbt_cli.engine.states import States
    from mbt_cli.store import provenance
    from mbt_cli.store.lineage import (
        FileRecord,
        InputRecord,
        Lineage,
        ServerRecord,
        Tokens,
        lineage_json,
        sealed,
    )  # fmt: skip

    opened, _ = open_manifest(manifest, (), None)
    origin, made, count = provenance.collected(), {}, 0
    for number, state in enumerate(States(opened, runs / "none").all()):
        cell = state.cell
        lineage = sealed(
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
        made[cell.address] = lineage
        if is_done(number, cell):
            folder = runs / opened.study / cell.address
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "rows.parquet").write_bytes(b"x")
            (folder / "lineage.json").write_bytes(lineage_json(lineage))
            count += 1
    return count
