"""`mbt export --jsonl` of cells of growing size: time and peak memory.

    python tests/bench/export_jsonl.py FOLDER [--prompts 100 400] [--samples 128] [--latex]

Replies have 6 kB, prompts 2 kB, verdicts three parts and an output of 1 kB. The export runs in a
process of its own; the ratio at the end is of the peak memory of the last size to the first one's.
`--latex` makes replies of formulas, whose escapes are read for secrets.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from mbt_cli.core import rows
from mbt_cli.judges.verifier import VerifierJudge
from mbt_cli.store.artifacts import ArtifactWriter
from mbt_cli.store.lineage import InputRecord, Lineage

AT = "benchmark=made/split=test"
ROLLOUTS, VERDICTS = f"base/{AT}/model=m", f"checked/{AT}/model=m/judge=verifier"
SCORE = f"scores/{AT}/model=m"
WORDS = {False: "the answer follows step by step ", True: r"\frac{a}{b} + \sqrt{x} \le 1, "}
VERDICT = pl.Schema({**rows.VERDICTS, **VerifierJudge.columns, "asked": pl.Boolean()})


class Cells:
    """Writes finished cells of a study."""

    def __init__(self, study: Path) -> None:
        self.study = study
        self.made: dict[str, Lineage] = {}

    def write(self, address, kind, frames, schema, inputs=(), spec=None, files=()):
        records = {
            one: InputRecord(fingerprint="f" * 64, sha256=self.made[one].content_sha256())
            for one in inputs
        }
        lineage = Lineage(
            study=self.study.name, stage=address.partition("/")[0], kind=kind, address=address,
            fingerprint="f" * 64, base_fingerprint="b" * 64, spec=spec or {}, inputs=records,
            model={"name": "m", "id": "made"}, started_at=datetime(2026, 1, 2, tzinfo=UTC),
        )  # fmt: skip
        folder = self.study / address
        with ArtifactWriter(folder, schema, address=address, fingerprint="f" * 64) as writer:
            for frame in frames:
                writer.write(frame)
            for name, frame in files:
                frame.write_parquet(writer.files / name)
            self.made[address] = writer.finish(lineage)


def write_study(study: Path, prompts: int, samples: int, *, latex: bool) -> None:
    """Questions, rollouts, verdicts (those of the last prompt first) and scores."""
    cells, draws = Cells(study), random.Random(1)
    text = WORDS[latex] * (12_000 // len(WORDS[latex]))
    ids = [f"q{number:06d}" for number in range(prompts)]
    asked = [{**dict.fromkeys(rows.QUESTIONS), "question_id": q, "answer": "1"} for q in ids]
    cells.write(f"questions/{AT}", "questions", [pl.DataFrame(asked, rows.QUESTIONS)],
                rows.QUESTIONS, spec={"benchmark": {"kind": "gsm8k"}})  # fmt: skip

    def rollouts():
        for q in ids:
            prompt = [{"role": "user", "content": f"{q} {'what is asked ' * 140}"}]
            yield pl.DataFrame(
                [
                    {**dict.fromkeys(rows.ROLLOUTS), "question_id": q, "sample": s, "answer": "1",
                     "messages": prompt, "reply": text[(at := draws.randrange(6_000)) : at + 6_000],
                     "finish_reason": "stop", "completion_tokens": 1_500, "prompt_tokens": 500}
                    for s in range(samples)
                ],
                rows.ROLLOUTS,
            )  # fmt: skip

    cells.write(ROLLOUTS, "rollout", rollouts(), rows.ROLLOUTS, (f"questions/{AT}",))
    parts = [{"name": f"r{k}", "passed": True, "passed_loose": True, "detail": ""} for k in "abc"]

    def verdicts():
        for q in (ids[-1], *ids[:-1]):
            yield pl.DataFrame(
                [
                    {**dict.fromkeys(VERDICT), "question_id": q, "sample": s, "vote": 0,
                     "value": float(s % 2), "passed": bool(s % 2), "parts": parts,
                     "output": text[:1_000]}
                    for s in range(samples)
                ],
                VERDICT,
            )  # fmt: skip

    cells.write(VERDICTS, "judge", verdicts(), VERDICT, (ROLLOUTS, f"questions/{AT}"),
                spec={"judge": {"kind": "verifier"}})  # fmt: skip
    number = {**dict.fromkeys(rows.SUMMARY), "metric": "verified", "value": 0.5, "unit": "percent"}
    summary = pl.DataFrame([{**number, "n": prompts, "failed": 0}], rows.SUMMARY)
    cells.write(SCORE, "score", [pl.DataFrame(schema=rows.SCORES)], rows.SCORES,
                (ROLLOUTS, VERDICTS, f"questions/{AT}"),
                files=[("summary.parquet", summary)])  # fmt: skip


def measured(folder: Path, prompts: int, samples: int, *, latex: bool) -> float:
    """Write a study and export it; returns the peak memory in MiB."""
    study, out = folder / f"made{prompts}", folder / f"out{prompts}"
    shutil.rmtree(study, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    write_study(study, prompts, samples, latex=latex)
    command = [sys.executable, "-m", "mbt_cli", "export", str(study / "scores"), "--jsonl"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--to", str(out), "--write"],
        env={**os.environ, "HF_TOKEN": "hf_notarealtoken0123456789"},
    ) as running:
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    seconds, processor = time.perf_counter() - began, used.ru_utime + used.ru_stime
    if running.returncode:
        sys.exit(running.returncode)
    size = sum(path.stat().st_size for path in out.rglob("*.jsonl"))
    peak = used.ru_maxrss / 1024
    count = prompts * samples
    sys.stdout.write(
        f"{count:,} rows: {seconds:.1f} s, {processor:.1f} s of processors "
        f"({count / processor:,.0f} rows each), {size / 1e6:,.0f} MB, {peak:.0f} MiB\n"
    )
    shutil.rmtree(out)
    return peak


def main() -> None:
    """Measure every size, and compare the last one with the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--latex", action="store_true")
    given = parser.parse_args()
    peaks = [measured(given.folder, n, given.samples, latex=given.latex) for n in given.prompts]
    growth = given.prompts[-1] / given.prompts[0]
    sys.stdout.write(f"{growth:g} times the rows: {peaks[-1] / peaks[0]:.2f} times the memory\n")


if __name__ == "__main__":
    main()
