"""Programs judged in a second, beside a cold bubblewrap Python for each of them.

    python -m tests.bench.sandbox mbpp.jsonl [--tasks 100] [--rounds 3]

Both ways run the same references of MBPP with their three assertions, in turns, on as many workers:
`code_tests`, and one `bwrap ... python -I` a program. Prints the completions a second by the clock
for each way, their ratio in each round, and the processor time of one completion of mbt, in all
its processes.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from mbt_cli.benchmarks.mbpp import MBPP
from mbt_cli.core.verifier import Submission
from mbt_cli.sandbox import pool
from mbt_cli.verifiers.code_tests import CodeTestsVerifier

BASE = sys.base_prefix
BARE = [
    *("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", BASE, BASE),
    *(word for path in ("/usr/lib", "/lib", "/lib64") if not BASE.startswith(path)
      for word in ("--ro-bind", path, path) if Path(path).exists()),
    *("--dev", "/dev", "--tmpfs", "/tmp", f"{BASE}/bin/python{sysconfig.get_python_version()}"),
    *("-I", "-"),
]  # fmt: skip


def processor_seconds(pids: list[int]) -> float:
    """Processor time of this process and of others with the children that they have reaped."""
    own = os.times()
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return own.user + own.system + own.children_user + own.children_system + ticks / 100


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def measured(run: Callable[[], int], pids: Callable[[], list[int]]) -> tuple[float, float]:
    """Completions a second, and processor milliseconds of one."""
    before, start = processor_seconds(pids()), time.perf_counter()
    count = run()
    seconds = time.perf_counter() - start
    return count / seconds, 1000 * (processor_seconds(pids()) - before) / count


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--tasks", type=int, default=100)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--workers", type=int, default=2)
    given = arguments.parse_args()
    records = [json.loads(line) for line in given.file.read_text().split("\n") if line]
    records = [one for one in records if one["task_id"] != 123][: given.tasks]
    questions = [MBPP().question(record) for record in records]
    programs = [
        "\n".join([one["code"], one["test_setup_code"], *one["test_list"]]) for one in records
    ]
    pool.configure(workers=given.workers)
    verifier = CodeTestsVerifier(packages=())
    submissions = [
        Submission(record["code"], question)
        for record, question in zip(records, questions, strict=True)
    ]
    workers = pool.pool()

    def with_mbt() -> int:
        return sum(check.passed for check in verifier.check_all(submissions))

    def cold(program: str) -> bool:
        return not subprocess.run(BARE, input=program, text=True, check=False).returncode

    def with_bubblewrap() -> int:
        with ThreadPoolExecutor(given.workers) as threads:
            return sum(threads.map(cold, programs))

    with_mbt()  # starts the workers
    ways = {"mbt": with_mbt, "cold bubblewrap": with_bubblewrap}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, run in ways.items():
            pids = lambda: [p for w in workers._workers for p in family(w.pid)]  # noqa: E731
            found[name].append(measured(run, pids))
    for name, results in found.items():
        print(f"{name}: {median(rate for rate, _ in results):.1f} completions/s")  # noqa: T201
    cost = median(cost for _, cost in found["mbt"])
    print(f"{cost:.1f} ms of the processor for each completion of mbt")  # noqa: T201
    ratios = [ours[0] / bare[0] for ours, bare in zip(*found.values(), strict=True)]
    print(f"ratio by the clock: {median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")  # noqa: T201


if __name__ == "__main__":
    main()
