"""Workers that run programs against their tests, each in a sandbox of its own.

    outcome = pool(packages=("numpy",)).examine(Examination("def f(x): return x", ...))

A worker is a process with a fork server inside namespaces, bubblewrap or Landlock (`LEVELS`). It
starts when it is needed, serves one examination at a time and ends with this process. One that dies
gives a VerificationError, and another takes its place.
"""

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any

from mbt_cli.core.cpus import usable_cpus
from mbt_cli.core.model_settings import SandboxLevel
from mbt_cli.errors import UsageError, VerificationError

LEVELS: Mapping[str, str] = {
    "namespaces": "namespaces of Linux with an empty root",
    "bubblewrap": "bubblewrap, for machines that allow namespaces to it alone",
    "landlock": "Landlock and seccomp, for machines without namespaces",
}
"""Levels that `auto` tries, the strongest first, and what they rest on."""
UNSAFE = "MBT_UNSAFE_CODE"
_LEVEL, _WORKERS = "MBT_SANDBOX", "MBT_SANDBOX_WORKERS"
_UNCONFINED = "none"

_START = (
    "import sys, json; sys.path.insert(0, sys.argv[1]); "
    "from mbt_cli.sandbox.server import main; sys.path.pop(0); main(json.loads(sys.argv[2]))"
)
_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_SILENT_SECONDS = 900.0
"""How long a worker may say nothing; a test of 5 s ends after 20 idle seconds at the latest."""
_MESSAGE_BYTES = 1 << 16
_IDLE_FACTOR = 4
"""Idle seconds that a process may have for each second of processor time."""
_PATIENCE_SECONDS = 0.2
"""How long an examination waits for a free worker before another one starts."""
_AHEAD = 16
"""Examinations that wait for each worker, so that a slow one holds up few others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one process with a program.

    Args:
        cpu_seconds: Processor time: of all assertions together, or of one case.
        memory_bytes: Address space.
    """

    cpu_seconds: float = 5.0
    memory_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Examination:
    """A program and its tests: assertions, or cases.

    Args:
        source: The program.
        tests: Name and text of each assertion test; they run in one namespace.
        setup: Texts that run before them, with the program's names.
        helpers: Texts that run first, before the program and before its tests, which see these
            names and not what the program makes of them; skipped if it is not whole.
        entries: Names that the program must define.
        cases: Input and wanted output; the program reads and prints, or `function` is called.
        function: Name of the function, or of a method of a class `Solution`, that is called with
            the inputs of a case; None: the program is run with its input.
        stops: Whether no case is run after one that fails.
        limits: Limits of the program.
    """

    source: str
    tests: Sequence[tuple[str, str]] = ()
    setup: Sequence[str] = ()
    helpers: Sequence[str] = ()
    entries: Sequence[str] = ()
    cases: Sequence[tuple[Any, Any]] | None = None
    function: str | None = None
    stops: bool = True
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an examination.

    Args:
        parts: Name, whether it passed, and why not, of each test that was run.
        output: The end of what the program printed.
        cpu_seconds: Processor time of the program.
    """

    parts: tuple[tuple[str, bool, str], ...]
    output: str
    cpu_seconds: float


_TRIAL = Examination("def f(x): return x + 1", (("1", "assert f(1) == 2"),))


class Unavailable(Exception):
    """A level does not work on this machine."""


# What is chosen

_chosen: SandboxLevel | None = None
_workers: int | None = None
_lock = threading.RLock()


def configure(*, level: SandboxLevel | None = None, workers: int | None = None) -> None:
    """Choose the level and the number of workers of this process; what runs already ends.

    Args:
        level: None: `$MBT_SANDBOX`, or `auto`.
        workers: None: `$MBT_SANDBOX_WORKERS`, or one for each processor.
    """
    global _chosen, _workers
    with _lock:
        if (level, workers) != (_chosen, _workers):
            _chosen, _workers = level, workers
            close()


def variables(level: SandboxLevel | None, workers: int | None) -> dict[str, str]:
    """The environment by which another process makes the same choice."""
    found = {_LEVEL: level, _WORKERS: workers and str(workers)}
    return {name: value for name, value in found.items() if value}


def close() -> None:
    """End all workers of this process; the next examination starts new ones."""
    with _lock:
        for one in _pools.values():
            one.close()
        _pools.clear()
        _working_level.cache_clear()


def wanted_level() -> str:
    """The level that is chosen, `auto` if none is.

    Raises:
        UsageError: `$MBT_SANDBOX` names none.
    """
    named = _chosen or os.environ.get(_LEVEL) or "auto"
    known = ("auto", *LEVELS, "container")
    if named not in known:
        raise UsageError(
            f"the environment variable `{_LEVEL}` is `{named}`",
            hint=f"set one of {', '.join(known)}",
        )
    return named


def _worker_count() -> int:
    named = os.environ.get(_WORKERS) or "0"
    if not named.isdecimal():
        raise UsageError(f"the environment variable `{_WORKERS}` is `{named}`, not a number")
    own = max(1, usable_cpus() // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return _workers or int(named) or own


@cache
def _working_level(wanted: str) -> str:
    """The level to use.

    Raises:
        UsageError: None works.
    """
    if sys.platform != "linux":
        raise UsageError(f"programs of models run on Linux alone, and this is {sys.platform}")
    if wanted == "container":
        return wanted
    reasons = []
    for level in LEVELS if wanted == "auto" else (wanted,):
        try:
            try_level(level)
        except Unavailable as error:
            reasons.append(f"{level}: {error}")
        else:
            return level
    if os.environ.get(UNSAFE, "0") not in ("", "0"):
        said = f"warning: {UNSAFE} is set and no sandbox works: programs of models run as you do"
        print(said, file=sys.stderr)  # noqa: T201
        return _UNCONFINED
    what = "no sandbox works" if wanted == "auto" else f"the sandbox `{wanted}` does not work"
    raise UsageError(
        f"{what} on this machine ({'; '.join(reasons)}), so programs of models are not run",
        hint="run `mbt doctor` to see why; in a container that you can throw away, set "
        '`[run] sandbox = "container"`',
    )


def try_level(level: str) -> None:
    """Start a worker and let it run a program.

    Raises:
        Unavailable: The level does not work here.
    """
    worker = Worker(level, {})
    try:
        found = worker.examine(_TRIAL)
    except VerificationError as error:
        raise Unavailable(error.message) from None
    finally:
        worker.end()
    if not found.parts[0][1]:
        raise Unavailable(f"a program that is right does not pass: {found.parts[0][2]}")


# Workers


class Worker:
    """One sandbox; used by one thread at a time.

    Args:
        level: One of `LEVELS`, `container`, or `none`.
        packages: Name of each package that programs can import, and the file that it is in.

    Raises:
        Unavailable: The level does not work on this machine.
    """

    def __init__(self, level: str, packages: Mapping[str, str]) -> None:
        reasons = []
        for as_nobody in (True, False) if os.geteuid() == 0 and level == "namespaces" else (False,):
            try:
                self._start(level, packages, as_nobody=as_nobody)
            except Unavailable as error:
                reasons.append(str(error))
            else:
                return
        raise Unavailable(reasons[-1])

    def _start(self, level: str, packages: Mapping[str, str], *, as_nobody: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        proc = os.open("/proc", os.O_RDONLY) if Path("/proc/self").is_dir() else -1
        shown = _package_files(packages)
        settings = {
            "level": level,
            "control": theirs.fileno(),
            "proc": proc if proc >= 0 else None,
            "readable": _python_folders(),
            "hidden": _other_packages(),
            "shown": shown,
            "packages": dict(packages),
            "as_nobody": as_nobody,
        }
        command = [_base_python(), "-P", "-S", "-s", "-B", "-X", "utf8", "-c", _START]
        command += [str(_ROOT), json.dumps(settings)]
        environment = {"PYTHONHASHSEED": "0"}
        if found := os.environ.get("LD_LIBRARY_PATH"):  # a Python of a cluster's modules needs it
            environment["LD_LIBRARY_PATH"] = found
        try:
            if level == "bubblewrap":
                command = [*_bubblewrap(shown), *command]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno(), *([proc] if proc >= 0 else [])],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, Unavailable) as error:
            ours.close()
            raise Unavailable(str(error)) from None
        finally:
            theirs.close()
            if proc >= 0:
                os.close(proc)
        self._control = ours
        self._is_ended = False
        answer = self._answer(_START_SECONDS)
        if answer is None or "error" in answer:
            self._process.kill()
            said = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
            self.end()
            last = said[-1] if said else "it does not start"
            raise Unavailable(last if answer is None else answer["error"])
        self.has_filter = bool(answer["filter"])
        """Whether system calls are filtered."""
        self.is_idle = True
        """Whether it can take an examination."""

    @property
    def pid(self) -> int:
        """The process that this one has started."""
        return self._process.pid

    def examine(self, task: Examination) -> Outcome:
        """Run one program against its tests.

        Raises:
            VerificationError: The worker has died, or no verdict can be reached.
        """
        self.is_idle = False
        ours, theirs = socket.socketpair()
        seconds = task.limits.cpu_seconds
        limits = {
            "cpu_seconds": seconds,
            "tests_cpu_seconds": _IDLE_FACTOR * seconds,
            "idle_seconds": _IDLE_FACTOR * seconds,
            "memory_bytes": task.limits.memory_bytes,
        }
        content = {name: getattr(task, name) for name in task.__slots__ if name != "limits"}
        with ours:
            try:
                socket.send_fds(self._control, [json.dumps(limits).encode()], [theirs.fileno()])
                theirs.close()
                ours.sendall(json.dumps(content).encode())
                ours.shutdown(socket.SHUT_WR)
                lines = self._lines(ours)
            except OSError:
                lines = []
            finally:
                theirs.close()
        end = self._answer(_SILENT_SECONDS)
        if end is None:
            raise VerificationError("the worker of the sandbox has died")
        self.is_idle = True
        return _outcome(task, lines, end)

    def _lines(self, channel: socket.socket) -> list[dict[str, Any]]:
        """What the tests report until they end."""
        data = bytearray()
        while _is_ready(channel, _SILENT_SECONDS) and (part := channel.recv(_MESSAGE_BYTES)):
            data += part
        whole = data[: data.rfind(b"\n") + 1]
        return [json.loads(line) for line in whole.splitlines()]

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        if not _is_ready(self._control, seconds):
            return None
        try:
            data = self._control.recv(_MESSAGE_BYTES)
        except OSError:
            return None
        found: dict[str, Any] | None = json.loads(data) if data else None
        return found

    def end(self) -> None:
        """End the worker with all that runs in it; it may have ended already."""
        if self._is_ended:
            return
        self._is_ended = True
        self._control.close()  # its server ends
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def stop(self) -> None:
        """Let an examination that runs in another thread fail."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Leave the worker to the process that started it, of which this one is a fork."""
        self._is_ended = True
        self._process.returncode = 0
        self._control.close()


def _is_ready(channel: socket.socket, seconds: float) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _outcome(
    task: Examination, lines: Sequence[Mapping[str, Any]], end: Mapping[str, Any]
) -> Outcome:
    """The outcome by what the tests have reported before they ended."""
    unjudged = next((line["unjudged"] for line in lines if "unjudged" in line), None)
    if unjudged is not None:
        raise VerificationError(str(unjudged))
    parts = [tuple(line["part"]) for line in lines if "part" in line]
    output = next((line["output"] for line in lines if "output" in line), None)
    if output is None:  # the tests themselves have ended
        if end["signal"] == signal.SIGKILL and not end["is_at_limit"]:
            raise VerificationError(
                "the tests were killed from outside, perhaps for want of memory"
            )
        reason = "took too long" if end["is_at_limit"] else "ended before they had a result"
        names = [name for name, _ in task.tests] or [f"case {len(parts) + 1}"]
        done = {name for name, _, _ in parts}
        parts += [(name, False, f"the tests {reason}") for name in names if name not in done]
    return Outcome(tuple(parts), output or "", float(end["cpu_seconds"]))


@cache
def _python_folders() -> tuple[str, ...]:
    """What a Python needs to run: its library, and the libraries of the system."""
    base = Path(sys.base_prefix)
    found = [base / "lib", base / sys.platlibdir, sysconfig.get_path("stdlib")]
    system = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
    other = ("/etc/ld.so.cache", "/usr/share/zoneinfo")
    devices = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
    return tuple(str(path) for path in (*found, *system, *other, *devices))


def _other_packages() -> list[str]:
    """Folders below those, with packages that programs do not see."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    own = [sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib")]
    debian = ["/usr/lib/python3/dist-packages", f"/usr/local/lib/{version}/dist-packages"]
    return sorted({*own, *debian, f"/usr/lib/{version}/site-packages"})


def _package_files(packages: Mapping[str, str]) -> list[str]:
    """The folders of packages, and of the libraries that their wheels bring."""
    found = []
    for name, origin in packages.items():
        path = Path(origin)
        folder = path.parent if path.name == "__init__.py" else path
        found += [str(folder), str(folder.parent / f"{name}.libs")]
    return found


def _base_python() -> str:
    # a virtual environment is a link and a file that lie outside of what is readable
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def _bubblewrap(shown: Sequence[str]) -> list[str]:
    """The command that starts bubblewrap with an empty root.

    Args:
        shown: Packages, which may lie in folders that are hidden otherwise.

    Raises:
        Unavailable: It is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise Unavailable("`bwrap` is not installed")
    own = [str(_ROOT / "mbt_cli/__init__.py"), str(_ROOT / "mbt_cli/sandbox")]
    hidden = [path for path in _other_packages() if Path(path).is_dir()]
    # not `--die-with-parent`: that means the thread that starts it, and the server ends by itself
    return [
        *(program, "--unshare-all", "--new-session", "--cap-drop", "ALL"),
        *_binds([*_python_folders(), *own, os.path.realpath(_base_python())]),
        *(word for path in hidden for word in ("--tmpfs", path)),
        *_binds(shown),
        *(word for path in (*hidden, "/") for word in ("--remount-ro", path)),
        *("--chdir", "/"),
    ]


def _binds(paths: Iterable[str]) -> Iterator[str]:
    done: list[str] = []
    for path in sorted(set(map(os.path.normpath, paths))):
        if not os.path.exists(path) or any(path.startswith(f"{one}/") for one in done):
            continue
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        else:
            done.append(path)
            yield from ("--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, path)


def package_origins(names: Iterable[str]) -> dict[str, str]:
    """The file of each package.

    Raises:
        UsageError: One is not installed.
    """
    found = {}
    for name in names:
        spec = find_spec(name) if name.isidentifier() else None
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            raise UsageError(
                f"programs may import `{name}`, which is not installed",
                hint=f"run `pip install {name}`, or remove it from `packages` of the verifier",
            )
        found[name] = spec.origin
    return found


# Pools


class Pool:
    """The workers of this process whose programs can import the same packages.

    Args:
        level: What confines them.
        count: The most workers.
        packages: Name and file of each package.
    """

    def __init__(self, level: str, count: int, packages: Mapping[str, str]) -> None:
        self._level, self._count, self._packages = level, count, packages
        self._free: LifoQueue[Worker] = LifoQueue()
        self._workers: set[Worker] = set()
        self._busy: set[Worker] = set()
        self._lock = threading.Lock()
        self._starting = 0

    def examine(self, task: Examination) -> Outcome:
        """Run one program against its tests; in any thread.

        Raises:
            VerificationError: No verdict was reached; a dead worker is replaced.
        """
        worker = self._take()
        with self._lock:
            self._busy.add(worker)
        try:
            return worker.examine(task)
        finally:
            with self._lock:
                is_well = worker.is_idle and worker in self._busy
                self._busy.discard(worker)
            if is_well:
                self._free.put(worker)
            else:  # it has died, or was stopped, or this thread was interrupted
                self._drop(worker)

    def examine_all(self, tasks: Iterable[Examination]) -> Iterator[Outcome | VerificationError]:
        """Run many, as many at a time as there are workers; the outcomes in their order."""
        waiting: deque[Future[Outcome]] = deque()
        threads = ThreadPoolExecutor(self._count, "sandbox")
        try:
            for task in tasks:
                waiting.append(threads.submit(self.examine, task))
                if len(waiting) >= _AHEAD * self._count:
                    yield _result(waiting[0])
                    waiting.popleft()
            while waiting:
                yield _result(waiting[0])
                waiting.popleft()
        finally:
            if not all(one.done() for one in waiting):  # nobody wants the rest
                threads.shutdown(wait=False, cancel_futures=True)
                self._stop()
            threads.shutdown()

    def _take(self) -> Worker:
        while True:
            with suppress(Empty):
                return self._free.get(timeout=_PATIENCE_SECONDS if self._workers else 0)
            with self._lock:
                if len(self._workers) + self._starting >= self._count:
                    continue
                self._starting += 1
            return self._started()

    def _started(self) -> Worker:
        worker = None
        try:
            worker = Worker(self._level, self._packages)
        except Unavailable as error:
            what = f"a worker of the sandbox does not start: {error}"
            raise VerificationError(what) from None
        finally:
            with self._lock:
                self._starting -= 1
                if worker is not None:
                    self._workers.add(worker)
        return worker

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.end()

    def _stop(self) -> None:
        """Let what runs now fail."""
        with self._lock:
            stopped = tuple(self._busy)
            self._busy.clear()
        for worker in stopped:
            worker.stop()

    def close(self) -> None:
        """End all workers."""
        for worker in tuple(self._workers):
            self._drop(worker)

    def forget(self) -> None:
        """Leave all workers to the process that this one is a fork of."""
        for worker in self._workers:
            worker.forget()


def _result(future: "Future[Outcome]") -> Outcome | VerificationError:
    try:
        return future.result()
    except VerificationError as error:
        return error


_pools: dict[tuple[str, ...], Pool] = {}


def pool(packages: Sequence[str] = ()) -> Pool:
    """The workers of this process; they start when they are needed.

    Args:
        packages: Names of packages beside the standard library that programs can import.

    Raises:
        UsageError: No level works on this machine, or a package is not installed.
    """
    key = tuple(sorted(set(packages)))
    with _lock:
        if key not in _pools:
            origins = package_origins(key)
            _pools[key] = Pool(_working_level(wanted_level()), _worker_count(), origins)
        return _pools[key]


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for one in _pools.values():
        one.forget()
    _pools.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
