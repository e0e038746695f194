"""No program gets out of the sandbox, and none passes a test that it does not solve."""

import os
import platform
import subprocess
import sys

import pytest

from mbt_cli.sandbox.pool import Examination, Limits
from tests.integration.sandbox.attacks import (
    CHEATS,
    ESCAPES,
    HONEST,
    LONG,
    OF_X86,
    WHAT_PASSES,
)

NEEDS_MORE = {
    # what a plain process of this machine cannot do either, or not without rights
    "a kernel ring", "a mount", "a performance counter", "a trace of the parent",
    "everyone by a signal", "its limit raised", "a key ring", "descriptors that are not its own",
    "packages of mbt", "more memory",
}  # fmt: skip
SHORT = Limits(cpu_seconds=0.5, memory_bytes=512 << 20)
IS_X86 = platform.machine() == "x86_64"


def tried(worker, source, limits=SHORT):
    return worker.examine(Examination(source, (("test", WHAT_PASSES),), limits=limits))


def test_an_honest_program_passes(worker):
    assert tried(worker, HONEST).parts == (("test", True, ""),)


@pytest.mark.parametrize("name", [*CHEATS, *ESCAPES, *(OF_X86 if IS_X86 else ())])
def test_nothing_passes_and_the_worker_goes_on(worker, name):
    source = {**CHEATS, **ESCAPES, **OF_X86}[name]

    outcome = tried(worker, source)

    ((_, passed, detail),) = outcome.parts
    assert not passed
    assert detail
    assert tried(worker, HONEST).parts == (("test", True, ""),)


@pytest.mark.parametrize("name", [*CHEATS, *(OF_X86 if IS_X86 else ())])
def test_no_cheat_returns_the_result_of_a_case(worker, name):
    source = {**CHEATS, **OF_X86}[name]

    outcome = worker.examine(Examination(source, cases=[([20], 21)], function="f", limits=SHORT))

    ((_, passed, detail),) = outcome.parts
    assert not passed
    assert detail


@pytest.mark.parametrize(
    ("source", "test"),
    [
        pytest.param(
            "import os\ndef f(x): os._exit(0)",
            "try:\n    f(20)\nexcept Exception:\n    pass\nelse:\n    assert False",
            id="it ends where an exception is expected",
        ),
        pytest.param(
            "import os\ndef f(x): os._exit(0)",
            "try:\n    assert f(20) == 21\nexcept:\n    pass",
            id="it ends where everything is caught",
        ),
        pytest.param(
            "def f(x): raise StopIteration",
            "assert all(map(lambda pair: f(pair[0]) == pair[1], [(20, 21)]))",
            id="it ends a loop of the tests",
        ),
        pytest.param(
            "class Full:\n    def __contains__(self, item): return True\ndef f(x): return Full()",
            "assert 21 in f(20)",
            id="it contains everything",
        ),
        pytest.param(
            "import datetime\nUTC = datetime.timezone.utc\n"
            "def f(x): return datetime.datetime(2020, 1, 1, tzinfo=UTC)",
            "import datetime\nassert f(20) == datetime.datetime(2020, 1, 1)",
            id="a time zone too many",
        ),
    ],
)
def test_other_tests_are_not_cheated(worker, source, test):
    outcome = worker.examine(Examination(source, [("test", test)], limits=SHORT))

    ((_, passed, detail),) = outcome.parts
    assert not passed
    assert detail


@pytest.mark.parametrize("name", [name for name in CHEATS if name.startswith("looks for")])
def test_a_search_finds_what_is_there(worker, name):
    planted = f'planted = ["{WHAT_PASSES}"] * 100\n'

    assert tried(worker, planted + CHEATS[name]).parts == (("test", True, ""),)


@pytest.mark.parametrize("name", LONG)
def test_what_never_ends_is_ended(worker, name):
    outcome = tried(worker, LONG[name])

    ((_, passed, detail),) = outcome.parts
    assert not passed
    assert detail
    assert outcome.cpu_seconds < 10 * SHORT.cpu_seconds
    assert tried(worker, HONEST).parts == (("test", True, ""),)


def test_tests_that_end_before_they_know_that_their_program_did(worker):
    source = "import os, threading\ndef f(x): threading.Timer(0.1, os._exit, (0,)).start()"

    outcome = worker.examine(
        Examination(source, [("test", "f(20)\nwhile True: pass")], limits=SHORT)
    )

    assert outcome.parts == (("test", False, "the tests took too long"),)
    assert tried(worker, HONEST).parts == (("test", True, ""),)


@pytest.mark.parametrize("name", [name for name in ESCAPES if name not in NEEDS_MORE])
def test_outside_of_a_sandbox_an_escape_works(name):
    done = subprocess.run(
        [sys.executable, "-c", f"{ESCAPES[name]}\n{WHAT_PASSES}"],
        env={"PATH": os.environ["PATH"], "HOME": "/root"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
