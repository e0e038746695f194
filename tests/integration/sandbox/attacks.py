"""Programs that try to get out of the sandbox, or to pass a test that they do not solve.

The test is `assert f(20) == 21`, which no program here computes. An escape returns 21 once it has
got out; outside of a sandbox it does.
"""

WHAT_PASSES = "assert f(20) == 21"
HONEST = "def f(x):\n    return x + 1"

CHEATS = {
    "ends the process with status 0": "import os\nos._exit(0)",
    "ends the process in the call": "import os\ndef f(x):\n    os._exit(0)",
    "raises SystemExit at the start": "raise SystemExit(0)",
    "raises SystemExit in the call": "import sys\ndef f(x):\n    sys.exit(0)",
    "an object that equals everything": """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return hash(21)
def f(x):
    return Liar()
""",
    "an integer that equals everything": """
class Liar(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
    def __index__(self): return 21
    def __int__(self): return 21
def f(x):
    return Liar(0)
""",
    "a float that equals everything": """
class Liar(float):
    def __eq__(self, other): return True
    __hash__ = float.__hash__
def f(x):
    return Liar(0)
""",
    "a list that equals everything": """
class Liar(list):
    def __eq__(self, other): return True
def f(x):
    return Liar()
""",
    "a class whose metaclass lies": """
class Meta(type):
    def __eq__(cls, other): return True
    def __instancecheck__(cls, other): return True
    __hash__ = type.__hash__
class Liar(metaclass=Meta): pass
def f(x):
    return Liar
""",
    "an object whose class pretends to be int": """
class Liar:
    __class__ = int
    def __eq__(self, other): return True
    def __hash__(self): return 21
    def __index__(self): return 21
def f(x):
    return Liar()
""",
    "ANY of unittest.mock": "from unittest.mock import ANY\ndef f(x):\n    return ANY",
    "a function that claims to come from Python": """
from unittest import mock
f = mock.MagicMock()
f.__module__ = "operator"
f.return_value.__eq__ = lambda self, other: True
""",
    "a named tuple that lies": """
import collections
class Liar(collections.namedtuple("Liar", "x")):
    def __eq__(self, other): return True
def f(x):
    return Liar(1)
""",
    "NotImplemented": "def f(x):\n    return NotImplemented",
    "patched assertions": """
import builtins
builtins.AssertionError = type("AssertionError", (BaseException,), {})
builtins.__debug__ if True else None
def f(x):
    return 0
""",
    "patched built-ins": """
import builtins
for name in ("all", "any", "bool", "int", "isinstance", "list", "len", "repr", "str", "type"):
    setattr(builtins, name, lambda *a, **k: True)
def f(x):
    return 0
""",
    "patched unittest": """
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
unittest.TestCase.run = lambda *a, **k: None
def f(x):
    return 0
""",
    "patched modules of the sandbox": """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("mbt_cli"):
        for key, value in list(vars(module).items()):
            if callable(value) and key.startswith(("different", "same", "_failure", "_tried")):
                setattr(module, key, lambda *a, **k: "")
            if key == "Examiner":
                value._outcome = lambda *a, **k: ""
            if key == "Remote":
                value.__eq__ = lambda self, other: True
def f(x):
    return 0
""",
    "patched JSON": """
import json
json.dumps = lambda *a, **k: '["done", true, []]'
json.loads = lambda *a, **k: ["done", True, []]
def f(x):
    return 0
""",
    "looks for the tests in its frames": """
import sys
def f(x):
    mark = bytes([97, 115, 115, 101, 114, 116, 32, 102, 40, 50, 48, 41]).decode()
    frame, found = sys._getframe(), repr(list(globals().values()))
    while frame.f_back is not None:
        frame = frame.f_back
        found += repr(frame.f_locals) + repr(list(frame.f_globals.values()))
    return 21 if mark in found else 0
""",
    "looks for the tests in its objects": """
import gc
def f(x):
    mark = bytes([97, 115, 115, 101, 114, 116, 32, 102, 40, 50, 48, 41]).decode()
    for one in gc.get_objects():
        for held in gc.get_referents(one):
            if type(held) is str and held is not mark and mark in held:
                return 21
    return 0
""",
    "looks for the tests in its memory": """
import ctypes
def f(x):
    mark = bytes([97, 115, 115, 101, 114, 116, 32, 102, 40, 50, 48, 41])
    libc = ctypes.CDLL(None, use_errno=True)
    found, page, seen = ctypes.create_string_buffer(1), 4096, set()
    for near in (id(object()), id([]), id({}), id("x" * 600), id(libc), ctypes.addressof(found)):
        for place in range((near & ~0xFFFFF), (near & ~0xFFFFF) + (4 << 20), page):
            # the kernel says whether a page is there
            if place in seen or libc.msync(ctypes.c_void_p(place), page, 1):
                continue
            seen.add(place)
            at = bytes((ctypes.c_char * page).from_address(place)).find(mark)
            if at >= 0 and place + at not in range(id(mark), id(mark) + 200):
                return 21
    return 0
""",
    "writes a verdict to every descriptor": """
import os
def f(x):
    for number in range(64):
        try:
            os.write(number, b'{"part": ["test", true, ""]}\\n{"output": ""}\\n')
        except OSError:
            pass
    return 0
""",
    "sends a result before it is asked": """
import json, struct, socket
channel = socket.socket(fileno=3)
for message in (["done", True, []], ["done", [["f", "value", "operator"]], []], ["done", None, []]):
    data = json.dumps(message).encode()
    channel.sendall(struct.pack("=I", len(data)) + data)
channel.detach()
def f(x):
    return 0
""",
    "asks the tests for their globals": """
import json, struct, socket
def f(x):
    channel = socket.socket(fileno=3)
    for request in (
        ["ask", "getattr", [["yours", 0], "__globals__"], {}],
        ["ask", "call", [["n", "print"], "x"], {}],
        ["ask", "getattr", [["n", "object"], "__subclasses__"], {}],
        ["ask", "global", ["f"], {}],
    ):
        data = json.dumps(request).encode()
        channel.sendall(struct.pack("=I", len(data)) + data)
        (size,) = struct.unpack("=I", channel.recv(4))
        answer = channel.recv(size)
        if b'"done"' in answer:
            return 21
    channel.detach()
    return 0
""",
    "sends what is not a message": """
import os
def f(x):
    os.write(3, b"\\xff\\xff\\xff\\x7f" + b"x" * 100)
    return 21
""".replace("return 21", "return 0"),
    "an exception without a name or a line": """
source = '''
def f(x):
    raise type("", (Exception,), {})()
'''
exec(compile(source, "elsewhere", "exec"), globals())
""",
    "an exception named by a colon": """
source = '''
def f(x):
    raise type(": ", (Exception,), {})()
'''
exec(compile(source, "elsewhere", "exec"), globals())
""",
    "says that it went wrong in no words": """
import json, os, struct, time
message = json.dumps(["done", "", []]).encode()
os.write(3, struct.pack("=I", len(message)) + message)
time.sleep(0.1)
""",
    "a handler at exit": """
import atexit
atexit.register(print, '{"part": ["test", true, ""]}')
def f(x):
    return 0
""",
    "a thread that outlives the test": """
import threading, os
def later():
    while True:
        try:
            os.write(3, b'\\x12\\x00\\x00\\x00["done", true, []]')
        except OSError:
            return
def f(x):
    threading.Thread(target=later).start()
    return 0
""",
    "an object that unpickles": """
import os
class Bomb:
    def __reduce__(self): return (exec, ("raise SystemExit(0)",))
def f(x):
    return Bomb()
""",
    "an endless iterator": """
def f(x):
    while True:
        yield 21
""",
    "a result that is too large": "def f(x):\n    return ['x' * 1000] * 100_000",
    "a result that is too deep": """
def f(x):
    made = []
    for _ in range(100_000):
        made = [made]
    return made
""",
    "a result that contains itself": """
def f(x):
    made = []
    made.append(made)
    return made
""",
    "keys that collide": "def f(x):\n    return {n * (2**61 - 1): 0 for n in range(20_000)}",
    "a number that is slow to read": """
from fractions import Fraction
def f(x):
    return Fraction(1, 7) ** 20_000
""",
    "kills itself": """
import os, signal
def f(x):
    os.kill(os.getpid(), signal.SIGKILL)
    return 0
""",
    "lowers its limit to be killed": """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
def f(x):
    while True: pass
""",
    "ends by a timer": """
import signal
signal.setitimer(signal.ITIMER_REAL, 0.01)
def f(x):
    while True: pass
""",
    "a fault in its memory": "import ctypes\ndef f(x):\n    ctypes.string_at(1)\n    return 0",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x)",
}

LONG = {
    "computes for ever": "def f(x):\n    while True: pass",
    "computes for ever in a single step": "def f(x):\n    return 10 ** 10 ** 9 % 7",
    "computes in many threads": """
import threading
def spin():
    while True: pass
def f(x):
    for _ in range(8):
        threading.Thread(target=spin).start()
    spin()
""",
    "sleeps for ever": "import time\ndef f(x):\n    time.sleep(1e9)",
    "stops itself": """
import os, signal
def f(x):
    os.kill(os.getpid(), signal.SIGSTOP)
    import time; time.sleep(1e9)
""",
    "waits for input": "import os\ndef f(x):\n    r, w = os.pipe()\n    os.read(r, 1)",
    "prints for ever": "def f(x):\n    while True: print('x' * 1000)",
    "prints for ever to errors": """
import os
def f(x):
    while True: os.write(2, b'x' * 65536)
""",
    "starts threads for ever": """
import threading, time
threading.stack_size(32768)
def f(x):
    while True:
        try:
            threading.Thread(target=time.sleep, args=(60,)).start()
        except RuntimeError:
            pass
""",
    "takes memory for ever": """
def f(x):
    held = []
    while True:
        try:
            held.append(bytearray(1 << 24))
        except MemoryError:
            pass
""",
    "floods the tests with requests": """
import json, struct, socket
def f(x):
    channel = socket.socket(fileno=3)
    data = json.dumps(["ask", "len", [["t", [0] * 1000]], {}]).encode()
    while True:
        channel.sendall(struct.pack("=I", len(data)) + data)
        channel.setblocking(False)
        try:
            while channel.recv(65536): pass
        except BlockingIOError:
            channel.setblocking(True)
""",
}

ESCAPES = {
    "a UDP packet": """
import socket
def f(x):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
    return 21
""",
    "a server": """
import socket
def f(x):
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    return 21
""",
    "a Unix socket": """
import socket
def f(x):
    one = socket.socket(socket.AF_UNIX)
    one.bind("\\0mbt-test-%d" % __import__("os").getpid())
    return 21
""",
    "the users of the machine": "def f(x):\n    return 21 if open('/etc/passwd').read() else 0",
    "the root folder": """
import os
def f(x):
    return 21 if {"home", "var", "boot"} & set(os.listdir("/")) else 0
""",
    "its parent's folder": """
import os
def f(x):
    names = os.listdir("/proc/1")
    return 21 if "environ" in names else 0
""",
    "its own memory as a file": "def f(x):\n    return 21 if open('/proc/self/mem', 'rb') else 0",
    "the environment": """
import os
def f(x):
    return 21 if {"PATH", "HOME"} & set(os.environ) else 0
""",
    "the first environment": """
def f(x):
    return 21 if b"PATH=" in open("/proc/self/environ", "rb").read() else 0
""",
    "a file in /tmp": """
import tempfile
def f(x):
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        return 21 if file.write(b"x") else 0
""",
    "a file where it works": """
import os, tempfile
def f(x):
    os.chdir("/tmp") if os.path.isdir("/tmp") else None
    with open("mbt-test-%d" % os.getpid(), "w") as file:
        file.write("x")
    os.unlink("mbt-test-%d" % os.getpid())
    return 21
""",
    "a link": """
import os
def f(x):
    path = "/tmp/mbt-test-link-%d" % os.getpid()
    os.symlink("/etc", path)
    os.unlink(path)
    return 21
""",
    "a folder": """
import os
def f(x):
    path = "/tmp/mbt-test-folder-%d" % os.getpid()
    os.mkdir(path)
    os.rmdir(path)
    return 21
""",
    "shared memory": """
from multiprocessing.shared_memory import SharedMemory
def f(x):
    one = SharedMemory(create=True, size=10)
    one.close()
    one.unlink()
    return 21
""",
    "memory in System V": """
import ctypes
def f(x):
    found = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
    if found >= 0:
        ctypes.CDLL(None).shmctl(found, 0, None)
    return 21 if found >= 0 else 0
""",
    "memory in a file": "import os\ndef f(x):\n    return 21 if os.memfd_create('x') else 0",
    "a new process": """
import os
def f(x):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return 21
""",
    "a fork bomb": """
import os
def f(x):
    for _ in range(10):
        if not os.fork():
            os._exit(0)
    return 21
""",
    "multiprocessing": """
import multiprocessing
def f(x):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(abs, (-21,))
""",
    "a shell": "import os\ndef f(x):\n    return 21 if os.system('exit 0') == 0 else 0",
    "another Python": """
import subprocess, sys
def f(x):
    return int(subprocess.run([sys.executable, "-c", "print(21)"], capture_output=True).stdout)
""",
    "a program by exec": """
import os, sys
def f(x):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    if hasattr(os, "posix_spawn"):
        os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}), 0)
    return 21
""",
    "the parent by a signal": "import os\ndef f(x):\n    os.kill(os.getppid(), 0)\n    return 21",
    "its group by a signal": "import os\ndef f(x):\n    os.killpg(os.getpgrp(), 0)\n    return 21",
    "everyone by a signal": "import os\ndef f(x):\n    os.kill(-1, 0)\n    return 21",
    "a signal by its input": """
import fcntl, os
def f(x):
    read, write = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getppid())
    return 21
""",
    "the limits of others": """
import os, resource
def f(x):
    resource.prlimit(os.getppid() or 2, resource.RLIMIT_NOFILE)
    return 21
""",
    "the priority of others": """
import os
def f(x):
    os.setpriority(0, os.getppid(), os.getpriority(0, os.getppid()))
    return 21
""",
    "a namespace": """
import ctypes
def f(x):
    return 21 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0
""",
    "another user": """
import ctypes, os
def f(x):
    return 21 if ctypes.CDLL(None).setresuid(os.getuid(), 65534, 65534) == 0 else 0
""",
    "a mount": """
import ctypes
def f(x):
    libc = ctypes.CDLL(None)
    found = libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)
    if found == 0:
        libc.umount(b"/tmp")
    return 21 if found == 0 else 0
""",
    "a trace of the parent": """
import ctypes, os
def f(x):
    found = ctypes.CDLL(None).ptrace(0x4206, os.getppid(), 0, 0)
    if found == 0:
        ctypes.CDLL(None).ptrace(17, os.getppid(), 0, 0)
    return 21 if found == 0 else 0
""",
    "a kernel ring": """
import ctypes
def f(x):
    held = ctypes.create_string_buffer(256)
    return 21 if ctypes.CDLL(None).syscall(425, 4, held) >= 0 else 0
""",
    "a performance counter": """
import ctypes
def f(x):
    held = ctypes.create_string_buffer(b"\\1\\0\\0\\0\\x70\\0\\0\\0" + bytes(104))
    return 21 if ctypes.CDLL(None).syscall(298, held, 0, -1, -1, 0) >= 0 else 0
""",
    "a key ring": """
import ctypes
def f(x):
    return 21 if ctypes.CDLL(None).syscall(250, 0, -3, 1) >= 0 else 0
""",
    "the mode of a file": """
import os
def f(x):
    os.chmod(os.__file__, os.stat(os.__file__).st_mode)
    return 21
""",
    "the time of a file": """
import os
def f(x):
    os.utime(os.__file__)
    return 21
""",
    "more memory": "def f(x):\n    return 21 if len(bytearray(3 << 30)) else 0",
    "many files": """
import os
def f(x):
    held = [os.dup(1) for _ in range(500)]
    return 21
""",
    "its limit raised": """
import resource
def f(x):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
    return 21
""",
    "descriptors that are not its own": """
import os
def f(x):
    for number in range(4, 256):
        try:
            os.fstat(number)
        except OSError:
            continue
        return 21
    return 0
""",
    "cores": """
import ctypes
def f(x):
    return 21 if ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1 else 0
""",
    "cores that it asks for": """
import ctypes
def f(x):
    return 21 if ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0 else 0
""",
    "packages of mbt": "def f(x):\n    import pydantic\n    return 21",
}

OF_X86 = {
    "a system call of 32 bits": """
import ctypes, mmap
def f(x):
    code = bytes.fromhex("b814000000cd80c3")  # getpid by int 0x80
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    place = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return 21 if ctypes.CFUNCTYPE(ctypes.c_int)(place)() > 0 else 0
""",
    "a system call of x32": """
import ctypes
def f(x):
    return 21 if ctypes.CDLL(None).syscall(0x40000000 + 39) > 0 else 0
""",
}
