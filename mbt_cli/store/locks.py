"""Locks: one process per cell; a lock is taken over only when its holder is gone.

The file `lock` (or `lock-3-of-8` for a shard) names its holder; its modification time is
the heartbeat. Every change happens under an flock on `lock.guard`, so if two processes find the
same dead holder, exactly one takes over.
"""

import contextlib
import errno
import fcntl
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import orjson
from pydantic import AwareDatetime, ValidationError

from mbt_cli.core.jobs import JobId
from mbt_cli.core.plugin import Settings
from mbt_cli.errors import LockedError, MbtError
from mbt_cli.store.disk import writing_to

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_SPACE = Path("/proc/self/ns/pid")
_STATE_FIELD, _START_FIELD = 0, 19  # of /proc/PID/stat behind the name in brackets


def host_name() -> str:
    """Name of this machine."""
    return socket.gethostname()


@lru_cache(maxsize=1)
def process_space() -> str:
    """Name of the set of processes within which a pid is unique.

    Two processes have the same name only on the same machine, since the same boot, and in the
    same container.
    """
    try:
        space = f"{_BOOT.read_text(encoding='ascii').strip()}/{_PROCESS_SPACE.readlink()}"
    except OSError:
        space = ""  # not Linux: only the host name is known
    return f"{host_name()}/{space}"


def start_of(pid: int) -> int | None:
    """Start of a running process in clock ticks since boot; None if it is not running.

    If the system does not report it, a running process gives 0.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return None if _BOOT.exists() else _start_without_proc(pid)
    except ProcessLookupError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[_STATE_FIELD] in (b"Z", b"X") else int(fields[_START_FIELD])


def _start_without_proc(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0


HEARTBEAT_SECONDS = 10.0
STALE_AFTER_SECONDS = 600.0
REQUEUED_AFTER_SECONDS = 30.0
_GUARD = "lock.guard"
_DRAFT, _PROBE = ".draft", ".probe"
_NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}


class Holder(Settings):
    """The holder of a lock."""

    token: str
    """Unique id of this lock."""
    host: str
    """Machine."""
    space: str
    """See `process_space`."""
    pid: int
    """Process."""
    process_start: int
    """See `start_of`; detects a reused pid."""
    launcher: str | None = None
    """Kind of the launcher that started the holder's job."""
    job: str | None = None
    """The launcher's id of that job."""
    since: AwareDatetime
    """When the lock was taken."""

    def is_alive_here(self) -> bool | None:
        """Whether the process runs; None if it is not visible from here."""
        if self.space != process_space():
            return None
        return start_of(self.pid) == self.process_start


class Lock:
    """A lock that is held."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self.path = path
        self.holder = holder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="mbt-heartbeat", daemon=True)

    def check(self) -> None:
        """Check that the lock was not taken over; called before anything final is written.

        Raises:
            LockedError: Another process holds it, because this one was suspended for too long.
        """
        now = _read(self.path)
        if now is None or now.token != self.holder.token:
            raise LockedError(
                f"the lock of `{self.path.parent}` was taken over"
                + (f" by {_description(now)}" if now else ""),
                hint="this process was suspended for too long; run the same command again",
            )

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self.path)
            except OSError:
                continue  # a network file system may recover; `check` detects a lost lock


@contextmanager
def holding(
    folder: Path,
    *,
    shard: tuple[int, int] | None = None,
    job: JobId | None = None,
    is_gone: Callable[[JobId], bool] = lambda _: False,
    stale_after_seconds: float = STALE_AFTER_SECONDS,
) -> Iterator[Lock]:
    """Hold the lock of a cell or of one shard of it.

    Args:
        folder: The cell's folder, created if missing.
        shard: (number from 0, of how many). A whole cell and its shards exclude each other, and
            so do shards of different counts.
        job: The job that this process belongs to. A holder of the same job on another machine
            whose heartbeat has stopped was that job before it was requeued.
        is_gone: Whether a job has left its queue; called with the holder's job.
        stale_after_seconds: Age of the last heartbeat from which a holder that this process
            cannot see counts as dead.

    Raises:
        LockedError: A living process holds it; the message says which and since when.
        ArtifactError: The folder cannot be written.
    """
    path = folder / ("lock" if shard is None else f"lock-{shard[0]}-of-{shard[1]}")
    lock = Lock(path, _this_process(job))
    with writing_to(path):
        folder.mkdir(parents=True, exist_ok=True)
        with _guarded(folder):
            for other in _conflicting(folder, path):
                _refuse_if_held(other, folder, lock.holder, is_gone, stale_after_seconds)
                other.unlink(missing_ok=True)
            for pattern in (f".*{_DRAFT}", f".*{_PROBE}"):  # a crash leaves them
                for left in folder.glob(pattern):
                    left.unlink(missing_ok=True)
            _put(path, lock.holder)
    lock._thread.start()
    try:
        yield lock
    finally:
        lock._stop.set()
        lock._thread.join()
        _release(folder, lock)


def remove_dead_locks(folder: Path) -> None:
    """Remove the locks of processes that died in a finished cell, at the very end of their run."""
    if not ((folder / "lock").exists() or (folder / _GUARD).exists()):
        return
    with contextlib.suppress(MbtError), holding(folder):
        pass


def holders(folder: Path) -> list[Holder]:
    """All recorded holders of the cell and its shards, running or not."""
    return [holder for path in _locks(folder) if (holder := _read(path)) is not None]


def _this_process(job: JobId | None) -> Holder:
    return Holder(
        token=uuid.uuid4().hex,
        host=host_name(),
        space=process_space(),
        pid=os.getpid(),
        process_start=start_of(os.getpid()) or 0,
        launcher=job.launcher if job else None,
        job=job.id if job else None,
        since=datetime.now(UTC),
    )


def _locks(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("lock*")) if path.name != _GUARD]


def _conflicting(folder: Path, mine: Path) -> list[Path]:
    """Locks that conflict with `mine`: all except other shards of the same count."""
    count = mine.name.partition("-of-")[2]
    return [
        path
        for path in _locks(folder)
        if path == mine or not count or path.name.partition("-of-")[2] != count
    ]


def _refuse_if_held(
    path: Path,
    folder: Path,
    mine: Holder,
    is_gone: Callable[[JobId], bool],
    stale_after_seconds: float,
) -> None:
    holder = _read(path)
    age = _age_seconds(path)
    if holder is None:
        is_held = (
            age is not None and age < HEARTBEAT_SECONDS
        )  # damaged by a crash, or being written
    else:
        if holder.job is not None and holder.job == mine.job:  # this job, before a requeue
            stale_after_seconds = min(stale_after_seconds, REQUEUED_AFTER_SECONDS)
        is_held = _is_held(holder, age, is_gone, stale_after_seconds)
    if is_held:
        who = _description(holder) if holder else "a process that is starting"
        raise LockedError(
            f"`{folder}` is locked by {who}",
            hint="wait for it or stop it, then run the same command again",
        )


def _is_held(
    holder: Holder,
    age_seconds: float | None,
    is_gone: Callable[[JobId], bool],
    stale_after_seconds: float,
) -> bool:
    alive = holder.is_alive_here()
    if alive is not None:
        return alive
    if holder.launcher and holder.job and is_gone(JobId(holder.launcher, holder.job)):
        return False
    return age_seconds is not None and age_seconds < stale_after_seconds


def _age_seconds(path: Path) -> float | None:
    """Seconds since the last heartbeat, by the file system's clock, which all hosts share."""
    probe = path.with_name(f".{uuid.uuid4().hex}{_PROBE}")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return None
    finally:
        probe.unlink()


def _put(path: Path, holder: Holder) -> None:
    """Write the lock atomically."""
    draft = path.with_name(f".{holder.token}{_DRAFT}")
    draft.write_bytes(orjson.dumps(holder.model_dump(mode="json")))
    draft.replace(path)


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _release(folder: Path, lock: Lock) -> None:
    if not folder.is_dir():
        return  # removed by hand, and the lock with it
    with _guarded(folder):
        now = _read(lock.path)
        if now is not None and now.token == lock.holder.token:
            lock.path.unlink(missing_ok=True)


def _description(holder: Holder) -> str:
    job = f", job {holder.job}" if holder.job else ""
    since = f"{holder.since:%Y-%m-%d %H:%M:%S} UTC"
    return f"process {holder.pid} on {holder.host}{job}, since {since}"


@contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    """Exclusive access to the locks in `folder`; the system releases it when a process dies."""
    path = folder / _GUARD
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            _flock(descriptor)
            if not _is_same_file(descriptor, path):
                continue  # its last user removed it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _flock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        # without flock two processes that find a dead holder may both take over; `Lock.check` then
        # stops the first one


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
