"""Attempts to get out of the sandbox, by which `mbt doctor` says what a level is worth.

Each is a program with a function `escape`, which returns True if it got out. They read or ask
something that is there outside, and change nothing.
"""

from collections.abc import Iterator

from mbt_cli.errors import VerificationError
from mbt_cli.sandbox.pool import Examination, Limits, Worker

_CPU_SECONDS = 1.0
_MEMORY_BYTES = 512 << 20
_GOT_OUT = "assert escape() is True"

ESCAPES = {
    "the network": """
import socket
def escape():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
    return True
""",
    "files of others": """
import os
def escape():
    return any(os.path.isfile(path) for path in ("/etc/passwd", "/etc/hostname", "/etc/hosts")
               if open(path).read() is not None)
""",
    "writing files": """
import tempfile
def escape():
    with tempfile.TemporaryFile(dir="/tmp") as file:
        return file.write(b"x") == 1
""",
    "the environment": """
import os
def escape():
    return any(name in os.environ for name in ("PATH", "HOME", "USER", "PWD"))
""",
    "other processes": """
import os
def escape():
    return any(name.isdecimal() and name != str(os.getpid()) for name in os.listdir("/proc"))
""",
    "signals to the parent": """
import os
def escape():
    os.kill(os.getppid(), 0)
    return True
""",
    "new processes": """
import os
def escape():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return True
""",
    "other programs": """
import os
def escape():
    return os.system("exit 0") == 0 or os.system("true") == 0
""",
    "more memory": """
def escape():
    return len(bytearray(2 << 30)) == 2 << 30
""",
    "more processor time": """
import time
def escape():
    while time.process_time() < 2:
        pass
    return True
""",
    "new privileges": """
import ctypes, os
def escape():
    found = ctypes.CDLL(None, use_errno=True)
    return found.unshare(0x10000000) == 0 or found.setuid(0) == 0 and os.getuid() == 0
""",
    "tests that it ends": """
import os
os._exit(0)
""",
    "tests that it deceives": """
class Anything:
    def __eq__(self, other): return True
    def __bool__(self): return True
def escape():
    return Anything()
""",
}
"""What an attempt is after, and its program."""


def attempts(worker: Worker) -> Iterator[tuple[str, bool]]:
    """What each attempt is after, and whether it got out.

    Raises:
        VerificationError: The worker died, which is also a way out.
    """
    limits = Limits(_CPU_SECONDS, _MEMORY_BYTES)
    for name, source in ESCAPES.items():
        outcome = worker.examine(Examination(source, (("escape", _GOT_OUT),), limits=limits))
        yield name, all(passed for _, passed, _ in outcome.parts)


def escaped(level: str) -> list[str]:
    """What programs reach at a level; empty if it holds.

    Raises:
        Unavailable: The level does not work on this machine.
    """
    worker = Worker(level, {})
    try:
        return [name for name, got_out in attempts(worker) if got_out]
    except VerificationError as error:
        return [f"the worker itself ({error.message})"]
    finally:
        worker.end()
