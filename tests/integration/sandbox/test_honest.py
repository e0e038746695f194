"""Right programs of kinds that a border between program and tests could refuse."""

import pytest

from mbt_cli.sandbox.pool import Examination

RIGHT = {
    "a decorator of the tests' functions": (
        "import functools\n"
        "def f(g):\n"
        "    @functools.wraps(g)\n"
        "    def doubled(*values): return 2 * g(*values)\n"
        "    return doubled",
        "@f\ndef g(x): return x\nassert g(2) == 4",
    ),
    "an object with a format": (
        "class f:\n    def __format__(self, form): return form + '!'",
        "assert f'{f():a}' == 'a!'",
    ),
    "values of a dictionary as argument": (
        "def f(values): return sum(values)",
        "assert f({1: 2, 3: 4}.values()) == 6",
    ),
    "values of a dictionary as result": (
        "def f(): return {1: 2, 3: 4}.values()",
        "assert list(f()) == [2, 4]\nassert len(f()) == 2",
    ),
    "a time with its zone": (
        "from datetime import datetime, timezone\n"
        "def f(): return datetime(2020, 1, 1, tzinfo=timezone.utc)",
        "from datetime import datetime, timezone\n"
        "assert f() == datetime(2020, 1, 1, tzinfo=timezone.utc)",
    ),
    "a generator that contains": (
        "def f():\n    yield 21",
        "assert 21 in f()\nassert 3 not in f()",
    ),
    "an array": (
        "import array\ndef f(): return array.array('i', [1, 2])",
        "assert 2 in f()\nassert list(f()) == [1, 2]",
    ),
}
FAST_INPUT = """
import os, sys
from io import BytesIO, IOBase

class Fast(IOBase):
    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None

    def readline(self):
        if not self.buffer.getbuffer().nbytes:
            self.buffer = BytesIO(os.read(self._fd, max(os.fstat(self._fd).st_size, 8192)))
        return self.buffer.readline()

    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)

names = sys.stdin.name, sys.stdout.name
sys.stdin, out = Fast(sys.stdin), Fast(sys.stdout)
out.write(str(int(sys.stdin.readline()) + len(names)).encode())
out.flush()
"""


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes(worker, name):
    source, test = RIGHT[name]

    assert worker.examine(Examination(source, [("test", test)])).parts == (("test", True, ""),)


def test_a_program_with_its_own_input_and_output_passes(worker):
    outcome = worker.examine(Examination(FAST_INPUT, cases=[("5\n", "7\n")]))

    assert outcome.parts == (("case 1", True, ""),)
