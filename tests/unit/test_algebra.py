"""The processes that compare expressions: their limits, their ends, and where they work."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mbt_cli.verifiers import algebra

pytest.importorskip("math_verify", reason="needs the extra `math`")

BOMBS = {
    "tower of powers": "9^{9^{9^{9}}}",
    "power of large numbers": "9" * 300 + "^" + "9" * 300,
    "factorial": "(10^9)!",
    "double factorial": "10000000!!",
    "sum": "\\sum_{k=1}^{1000000000} k^k",
    "product": "\\prod_{k=1}^{100000000} (k+1)",
    "integral": "\\int_0^{100} \\sin(x^x) dx",
    "expansion": "(x+y+z)^{10000}-(z+x+y)^{10000}+1",
    "nested fractions": "\\frac{1}{1+" * 60 + "x" + "}" * 60,
    "nested powers": "x^{" * 150 + "2" + "}" * 150,
    "deep brackets": "(" * 3_000 + "1" + ")" * 3_000,
    "many digits": "9" * 100_000,
    "matrix": r"\begin{pmatrix}" + r"\\".join(["&".join("1" * 60)] * 60) + r"\end{pmatrix}^{999}",
    "many terms": "+".join(f"\\sin({number})" for number in range(300)),
    "open fractions": "\\frac{" * 2_000,
    "spaces": "1" + " " * 50_000 + "2",
}
PARENT = """
import os, sys, threading, time
from mbt_cli.verifiers import algebra

assert algebra.equal("2+x", "x+2")
(worker,) = algebra._POOLS["meaning"]._workers
if {busy}:
    threading.Thread(target=algebra.equal, args=("(10^9)!", "1"), daemon=True).start()
if {forked} and not os.fork():
    time.sleep(600)
print(worker._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_different_and_harms_no_neighbour(bomb):
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(algebra.equal, ("x+1", bomb, "y+y"), ("1+x", "72", "2 y")))

    assert found == [True, False, True]


def test_a_limit_costs_no_start_of_a_worker():
    pool = algebra._Pool("meaning")
    try:
        assert pool.compare("x+1", "1+x")
        (worker,) = pool._workers

        assert not pool.compare("9^{9^{9^{9}}}", "72")

        assert pool.compare("x+1", "1+x")
        assert pool._workers == {worker}
    finally:
        pool.end()


def test_the_memory_of_a_worker_is_limited():
    pool = algebra._Pool("meaning")
    try:
        assert pool.compare("x+1", "1+x")
        (worker,) = pool._workers
        (child,) = children_of(worker._process.pid)
        limits = Path(f"/proc/{child}/limits").read_text().splitlines()
    finally:
        pool.end()

    (line,) = (line for line in limits if line.startswith("Max address space"))
    assert int(line.split()[3]) == algebra._MEMORY_BYTES


def test_a_worker_that_is_killed_is_replaced():
    pool = algebra._Pool("meaning")
    try:
        assert pool.compare("x+1", "1+x")
        (worker,) = pool._workers
        os.killpg(worker._process.pid, signal.SIGKILL)

        assert pool.compare("x+2", "2+x")
        assert pool._workers.isdisjoint({worker})
    finally:
        pool.end()


def test_a_worker_whose_child_is_killed_is_replaced():
    pool = algebra._Pool("meaning")
    try:
        assert pool.compare("x+1", "1+x")
        (worker,) = pool._workers
        (child,) = children_of(worker._process.pid)
        os.kill(child, signal.SIGKILL)

        assert pool.compare("x+2", "2+x")
    finally:
        pool.end()


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM", "SIGINT"])
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("forked", [False, True])
def test_no_worker_outlives_its_process(signal_name, busy, forked):
    program = PARENT.format(busy=busy, forked=forked)
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    worker = int(parent.stdout.readline())
    assert group_of(worker)
    copies = [pid for pid in children_of(parent.pid) if pid != worker]

    parent.send_signal(signal.Signals[signal_name])
    parent.wait()

    try:
        while group_of(worker):  # ends with the test's own limit otherwise
            threading.Event().wait(0.05)
    finally:
        for copy in copies:
            os.kill(copy, signal.SIGKILL)
        parent.stdout.close()


def test_expressions_are_compared_in_threads_and_event_loops():
    async def compare():
        inside = algebra.equal("3+x", "x+3")
        return inside, await asyncio.to_thread(algebra.equal, "4+x", "x+4")

    assert asyncio.run(compare()) == (True, True)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_expressions_are_compared_in_every_kind_of_process(method):
    assert algebra.equal("5+x", "x+5")
    context = multiprocessing.get_context(method)

    with context.Pool(2) as processes:  # its processes are daemons, which may have no children
        found = processes.starmap(algebra.equal, [("6+x", "x+6"), ("7+x", "x+8")] * 2)

    assert found == [True, False] * 2
    assert algebra.equal("9+x", "x+9")


def test_an_interrupted_comparison_leaves_no_reply_to_the_next(monkeypatch):
    pool = algebra._Pool("meaning")

    def interrupt(*_):
        raise KeyboardInterrupt

    try:
        assert pool.compare("x+1", "1+x")
        with monkeypatch.context() as patch:
            patch.setattr(algebra.select, "poll", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pool.compare("x+2", "2+x")

        assert not pool.compare("x+1", "x+3")
    finally:
        pool.end()


def children_of(pid):
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if (found := stat_of(path)) and int(found[1]) == pid
    ]


def group_of(pid):
    """The processes of a group that run."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if (found := stat_of(path)) and int(found[2]) == pid and found[0] != "Z"
    ]


def stat_of(path):
    """State, parent and group of a process; None once it has gone."""
    try:
        return path.read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
