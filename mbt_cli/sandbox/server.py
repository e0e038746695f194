"""The fork server of a worker: a warm Python inside the sandbox that starts tests and programs.

    python -c "..." ROOT '{"level": "namespaces", "control": 3, "proc": 4, ...}'

For each request it forks a process for the tests; that one asks for a process for each program. The
server hands over channels and never reads what passes through them, so that no program inherits the
tests of an earlier one in its memory. It ends with the process that started it.

It runs inside the sandbox and imports the standard library alone.
"""

import _sitebuiltins
import builtins
import fcntl
import gc
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from mbt_cli.sandbox import confinement
from mbt_cli.sandbox.candidate import CHANNEL, Candidate
from mbt_cli.sandbox.examiner import Examiner

_WARM = (
    "ast", "bisect", "cmath", "collections.abc", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "operator",
    "random", "re", "statistics", "string", "sys", "textwrap", "time", "traceback", "typing",
)  # fmt: skip
"""Modules that are imported before the first program, so that none waits for them."""
_MESSAGE_BYTES = 1 << 16
_CHANNEL_OF_TESTS = 4
_OPEN_FILES = 256
_LONGEST_POLL = 60.0
"""Seconds."""
_MORE_SECONDS = 2
"""Processor time after which the kernel ends a process that this one has not ended."""
_CLOCK_OF_PROCESS = 2
_ABOUT = 0.9
"""The kernel's limit counts ticks."""


def main(settings: Mapping[str, Any]) -> None:
    """Enter the sandbox, say so, and serve until the control channel closes."""
    settings = {**settings, **_only(settings["control"], settings["proc"])}
    control = socket.socket(fileno=settings["control"])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for name in _WARM:
        import_module(name)
    if settings["packages"]:
        sys.meta_path.append(_Packages(settings["packages"]))
    try:
        place = _ENTER[settings["level"]](settings)
    except OSError as error:
        control.send(json.dumps({"error": str(error.strerror or error)}).encode())
        return
    os.environ.clear()
    # numpy's library would start a thread for each processor
    os.environ.update({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    os.chdir("/")
    random.seed(0)
    # what the module `site` adds, which reads packages
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "the end of the input"))
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"filter": place.filter is not None}).encode())
    Server(control, place).serve()


@dataclass(frozen=True, slots=True)
class Place:
    """What the entered level gives to the processes that are started in it.

    Args:
        filter: Their system call filter; None where the kernel has none.
        has_own_users: Whether they are in a user namespace of their own.
        own_pids: File of the server's pid namespace, where programs get one of their own.
        proc: Folder of the processes of the machine, open; None if it is not there.
    """

    filter: confinement.Filter | None
    has_own_users: bool = False
    own_pids: int | None = None
    proc: int | None = None


def _only(control: int, proc: int | None) -> dict[str, int | None]:
    """Leave this process these descriptors at low numbers, and its errors."""
    _keep({end: at for end, at in ((2, 2), (control, 3), (proc, 4)) if end is not None})
    # where no call closes a range, a child would close each number up to the limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    return {"control": 3, "proc": None if proc is None else 4}


def _filter(*, keeps_files: bool) -> confinement.Filter | None:
    return confinement.Filter(keeps_files=keeps_files) if confinement.has_filters() else None


def _enter_namespaces(settings: Mapping[str, Any]) -> Place:
    """Go on as the first process of new namespaces; the process that came here waits for it.

    Raises:
        OSError: The kernel or its policy forbids namespaces.
    """
    users_read, users_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    failed_read, failed_write = os.pipe()
    confinement.adopt_orphans()
    child = os.fork()
    if child:
        os.close(users_write)
        os.close(failed_write)
        _wait_outside(child, users_read, mapped_write, failed_read, settings)
    os.close(users_read)
    os.close(mapped_write)
    os.close(failed_read)
    try:
        confinement.leave_namespaces()
        os.write(users_write, b"1")
        os.close(users_write)
        if os.read(mapped_read, 1) != b"1":
            os._exit(0)
        if os.fork():
            os._exit(0)
        namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=settings["proc"])
        readable = [*settings["readable"], *_mapped_libraries()]
        confinement.enter_empty_root(readable, settings["hidden"], settings["shown"])
        confinement.become(confinement.INSIDE_ID)
    except OSError as error:
        os.write(failed_write, str(error.strerror or error).encode())
        os._exit(1)
    os.close(mapped_read)
    os.close(failed_write)
    return Place(_filter(keeps_files=True), True, namespace, settings["proc"])


def _wait_outside(
    child: int, users_read: int, mapped_write: int, failed_read: int, settings: Mapping[str, Any]
) -> None:
    """Map the users of the child, and end with the server that it starts.

    Raises:
        OSError: The server does not start.
    """
    error: OSError | None = None
    if os.read(users_read, 1) == b"1":
        try:
            confinement.map_users(child, as_nobody=settings["as_nobody"])
            os.write(mapped_write, b"1")
        except OSError as found:
            error = OSError(found.errno, f"map users: {found.strerror}")
    os.close(mapped_write)
    os.waitpid(child, 0)
    text = b""
    while part := os.read(failed_read, _MESSAGE_BYTES):  # ends when the server is inside
        text += part
    if text:
        error = OSError(0, text.decode())
    if error is not None:
        raise error
    os.close(settings["control"])
    with suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)


def _stay(settings: Mapping[str, Any]) -> Place:
    """Go on in a sandbox that another program has made around this process."""
    return Place(_needed_filter(keeps_files=True), proc=settings["proc"])


def _needed_filter(*, keeps_files: bool) -> confinement.Filter:
    found = _filter(keeps_files=keeps_files)
    if found is None:
        raise OSError(0, "system calls cannot be filtered on this kernel or processor")
    return found


def _enter_landlock(settings: Mapping[str, Any]) -> Place:
    found = _needed_filter(keeps_files=False)
    _allow_only(settings)
    return Place(found, proc=settings["proc"])


def _allow_only(settings: Mapping[str, Any]) -> None:
    confinement.allow_only([*settings["readable"], *settings["shown"], *_mapped_libraries()])


def _mapped_libraries() -> set[str]:
    """Libraries that this Python uses, wherever a cluster's modules have them."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as lines:
        paths = {line.rstrip("\n").partition("/")[2] for line in lines if "/" in line}
    return {f"/{path}" for path in paths if ".so" in path.rpartition("/")[2]}


def _enter_container(settings: Mapping[str, Any]) -> Place:
    with suppress(OSError):  # whatever the container leaves
        _allow_only(settings)
    return Place(_filter(keeps_files=False), proc=settings["proc"])


_ENTER: Mapping[str, Callable[[Mapping[str, Any]], Place]] = {
    "namespaces": _enter_namespaces,
    "bubblewrap": _stay,
    "landlock": _enter_landlock,
    "container": _enter_container,
    "none": _enter_container,
}


class _Packages(MetaPathFinder):
    """Imports of the packages that programs may use, and of nothing beside them.

    Args:
        origins: Name to the file that holds it.
    """

    def __init__(self, origins: Mapping[str, str]) -> None:
        self._origins = origins

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        origin = self._origins.get(name)
        if origin is None:
            return None
        folder = [str(Path(origin).parent)] if Path(origin).name == "__init__.py" else None
        return spec_from_file_location(name, origin, submodule_search_locations=folder)


@dataclass
class _Child:
    """A process that runs for a request.

    Args:
        pid: As the server sees it.
        seconds: How long it may be idle, waiting for a processor apart.
        started: On the monotonic clock.
    """

    pid: int
    seconds: float
    started: float = field(default_factory=time.monotonic)
    limit: str | None = None
    is_stopped: bool = False

    def kill(self) -> None:
        """End it; it is reaped later."""
        self.is_stopped = True
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _End:
    """How a process ended."""

    signal: int
    status: int
    cpu_seconds: float


class Server:
    """Serves one request at a time.

    Args:
        control: Requests come here, each with the channel of its tests; closed: the end.
        place: What surrounds the processes that it starts.
    """

    def __init__(self, control: socket.socket, place: Place) -> None:
        self._control = control
        self._place = place
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._host_pid = self._own_number()

    def serve(self) -> None:
        """Serve requests until there are no more."""
        while True:
            message, channels, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
            if not message:
                return
            request = json.loads(message)
            (channel,) = channels
            end = self._judge(request, channel)
            self._control.send(json.dumps(end).encode())

    def _judge(self, request: Mapping[str, Any], channel: int) -> dict[str, Any]:
        """Start the tests, and programs as they ask for them; how all of it ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self._fork(
            {channel: CHANNEL, theirs.fileno(): _CHANNEL_OF_TESTS},
            lambda: self._examine(request),
            has_own_pids=False,
        )
        os.close(channel)
        theirs.close()
        tests = _Child(pid, request["idle_seconds"])
        program: _Child | None = None
        cpu_seconds = 0.0
        poll = select.poll()
        poll.register(ours.fileno(), select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._control.fileno(), 0)  # closed
        while True:
            # tests that wait for a program are not idle
            is_alone = program is None
            seconds = self._enforce(tests, request["tests_cpu_seconds"], counts_idle=is_alone)
            if program is not None:
                left = self._enforce(program, request["cpu_seconds"], counts_idle=True)
                seconds = min(seconds, left)
            events = dict(poll.poll(1000 * seconds + 1))
            if self._control.fileno() in events:
                tests.kill()
                if program is not None:
                    program.kill()
                os._exit(0)
            if ours.fileno() in events:
                program = self._obey(request, ours, program, poll)
            with suppress(BlockingIOError):
                os.read(self._wake_read, _MESSAGE_BYTES)
            for pid, end in self._ended():
                if program is not None and pid == program.pid:
                    cpu_seconds += end.cpu_seconds
                    self._tell(ours, request, program, end)
                    program = None
                    tests.started = time.monotonic()
                elif pid == tests.pid:
                    if program is not None:
                        program.kill()
                        cpu_seconds += self._reap(program.pid)
                    ours.close()
                    is_spent = end.cpu_seconds > _ABOUT * request["tests_cpu_seconds"]
                    return {
                        "cpu_seconds": cpu_seconds,
                        "signal": end.signal,
                        "is_at_limit": tests.limit is not None or is_spent,
                    }

    def _obey(
        self,
        request: Mapping[str, Any],
        channel: socket.socket,
        program: _Child | None,
        poll: Any,
    ) -> _Child | None:
        """Do what the tests ask: start or stop the program."""
        try:
            message, ends, _, _ = socket.recv_fds(channel, 16, 3)
        except ConnectionResetError:  # they have ended before they read how their program ended
            message, ends = b"", []
        if not message:
            poll.unregister(channel.fileno())
        elif message == b"stop" and program is not None:
            program.kill()
        elif message == b"start" and program is None and len(ends) == 3:
            pid = self._fork(
                dict(zip(ends, (CHANNEL, 1, 2), strict=True)),
                lambda: Candidate(lambda: self._confine(request)).serve(),
                has_own_pids=True,
            )
            program = _Child(pid, request["idle_seconds"])
        for end in ends:
            os.close(end)
        return program

    def _tell(
        self, channel: socket.socket, request: Mapping[str, Any], program: _Child, end: _End
    ) -> None:
        """Tell the tests how their program ended."""
        limit = program.limit
        is_killed = end.signal == signal.SIGKILL and not program.is_stopped
        if is_killed and end.cpu_seconds > _ABOUT * request["cpu_seconds"]:
            limit, is_killed = "processor", False  # threads are faster than this process looks
        found = {"signal": end.signal, "status": end.status, "limit": limit, "outside": is_killed}
        with suppress(OSError):  # they may have ended
            channel.send(json.dumps(found).encode())

    # Processes

    def _fork(
        self, ends: Mapping[int, int], action: Callable[[], None], *, has_own_pids: bool
    ) -> int:
        """Start a process that has some descriptors of this one, at other numbers, and no more."""
        pids = self._place.own_pids if has_own_pids else None
        if pids is not None:
            confinement.new_pids()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                _keep(ends)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                confinement.die_with_parent()
                action()
                status = 0
            finally:
                os._exit(status)
        if pids is not None:
            confinement.same_pids(pids)
        return pid

    def _examine(self, request: Mapping[str, Any]) -> None:
        report = socket.socket(fileno=CHANNEL)
        try:
            task = json.loads(_all_of(report))
            self._limit(request["tests_cpu_seconds"], request["memory_bytes"])
            Examiner(socket.socket(fileno=_CHANNEL_OF_TESTS), report).examine(task)
        except BaseException as error:  # noqa: BLE001 - nothing may look like a verdict
            text = "".join(traceback.format_exception(error))
            report.sendall(json.dumps({"unjudged": text}).encode() + b"\n")

    def _confine(self, request: Mapping[str, Any]) -> None:
        self._limit(request["cpu_seconds"], request["memory_bytes"])

    def _limit(self, cpu_seconds: float, memory_bytes: int) -> None:
        confinement.drop_privileges()
        confinement.limit_resources(
            cpu_seconds=int(cpu_seconds) + _MORE_SECONDS,
            memory_bytes=memory_bytes,
            has_own_users=self._place.has_own_users,
        )
        if self._place.filter is not None:
            self._place.filter.install()

    def _ended(self) -> list[tuple[int, _End]]:
        found = []
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                found.append((pid, _end_of(status, usage.ru_utime + usage.ru_stime)))
        return found

    def _reap(self, pid: int) -> float:
        with suppress(ChildProcessError):
            usage = os.wait4(pid, 0)[2]
            return usage.ru_utime + usage.ru_stime
        return 0.0

    # Time

    def _enforce(self, child: _Child, cpu_seconds: float, *, counts_idle: bool) -> float:
        """End a process at its limit of time, else say in how many seconds to look again."""
        if child.is_stopped:
            return _LONGEST_POLL
        computing = cpu_seconds - _cpu_time(child.pid)
        idle = _LONGEST_POLL
        if counts_idle:
            idle = child.started + child.seconds - time.monotonic()
        if idle <= 0:
            idle += self._waited(child.pid)
        if min(computing, idle) <= 0:
            child.limit = "processor" if computing <= 0 else "wall"
            child.kill()
            return _LONGEST_POLL
        return min(computing, idle, _LONGEST_POLL)

    def _waited(self, pid: int) -> float:
        """Seconds for which a process was ready to run while others had the processors.

        0 where the kernel does not say: then the wall clock alone counts.
        """
        if self._host_pid is None:
            return 0.0
        children = self._read(f"{self._host_pid}/task/{self._host_pid}/children").split()
        depth = len(self._pids_of(self._host_pid)) - 1
        own = next((one for one in children if self._pids_of(one)[depth:][:1] == [str(pid)]), None)
        if own is None:
            return 0.0
        delays = [self._read(f"{own}/task/{one}/schedstat").split() for one in self._tasks_of(own)]
        return max((int(delay[1]) for delay in delays if len(delay) > 1), default=0) / 1e9

    def _pids_of(self, pid: str) -> list[str]:
        """The numbers of a process in the namespaces that it is in, the outermost first."""
        lines = self._read(f"{pid}/status").splitlines()
        return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])

    def _tasks_of(self, pid: str) -> list[str]:
        with suppress(OSError):
            folder = os.open(f"{pid}/task", os.O_RDONLY, dir_fd=self._place.proc)
            try:
                return os.listdir(folder)
            finally:
                os.close(folder)
        return []

    def _own_number(self) -> str | None:
        if self._place.proc is None:
            return None
        with suppress(OSError):
            return os.readlink("self", dir_fd=self._place.proc)
        return None

    def _read(self, path: str) -> str:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY, dir_fd=self._place.proc)
            with open(file, encoding="ascii", errors="replace") as text:
                return text.read()
        return ""


def _cpu_time(pid: int) -> float:
    """Processor time of a child, all threads together."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | _CLOCK_OF_PROCESS)
    return 0.0


def _end_of(status: int, cpu_seconds: float) -> _End:
    is_signal = os.WIFSIGNALED(status)
    number = os.WTERMSIG(status) if is_signal else 0
    return _End(number, 0 if is_signal else os.WEXITSTATUS(status), cpu_seconds)


def _all_of(channel: socket.socket) -> bytes:
    data = bytearray()
    while part := channel.recv(1 << 20):
        data += part
    return bytes(data)


def _keep(ends: Mapping[int, int]) -> None:
    """Leave this process some descriptors at new numbers, the standard streams, and no more."""
    lowest = max(ends.values()) + 1
    copies = {fcntl.fcntl(end, fcntl.F_DUPFD, lowest + 3): at for end, at in ends.items()}
    nowhere = os.open(os.devnull, os.O_RDWR)
    copies |= {
        fcntl.fcntl(nowhere, fcntl.F_DUPFD, lowest + 3): at
        for at in (0, 1, 2)
        if at not in ends.values()
    }
    for copy, at in copies.items():
        os.dup2(copy, at)
    os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))
