"""Locks: one process per cell; a lock is taken over only when its holder is gone.

The file `lock` (or `lock-3-of-8` for a shard) names its holder; its modification time is
the heartbeat. Every change happens under an flock on `lock.guard`.

On many network file systems, flock holds on one machine only, or not at all. Therefore no step
relies on it: a lock is created exclusively; of many processes that find a dead holder, one can
create the claim that allows it to remove the lock; and whoever then finds another lock beside its
own gives up.
"""

import errno
import fcntl
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from time import monotonic, sleep

import orjson
from pydantic import AwareDatetime, ValidationError

from mbt_cli.core.jobs import JobId
from mbt_cli.core.plugin import Settings
from mbt_cli.core.signals import held_back
from mbt_cli.errors import ArtifactError, LockedError, MbtError
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
_PROBE, _CLAIM, _DRAFT = ".probe", ".claim", ".draft"
_CLAIM_SECONDS = 60.0
"""After this a claim is void whose process this one cannot see; it needs milliseconds."""
_GUARD_SECONDS = 60.0
"""After this the guard is not waited for: on NFS, a machine that crashed may hold it for ever."""
_GUARD_POLL_SECONDS = 0.02
_WATCH_SECONDS = 25.0
_WATCH_POLL_SECONDS = 0.5
"""How long a heartbeat is watched that seems to have stopped, and how often it is read."""
_READ_SECONDS = 5.0
_READ_POLL_SECONDS = 0.1
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
            ArtifactError: It cannot be read.
        """
        now = _read_patiently(self.path)
        if now is None or now.token != self.holder.token:
            raise LockedError(
                f"the lock of `{self.path.parent}` was taken over"
                + (f" by {description(now)}" if now else ""),
                hint="this process was suspended for too long; run the same command again",
            )

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            now = _read(self.path)
            if now is not None and now.token != self.holder.token:
                return  # taken over; `check` reports it
            with suppress(OSError):  # a network file system may recover
                self._touch()

    def _end(self) -> None:
        with held_back():
            self._stop.set()
            if self._thread.is_alive():  # a signal that came while it started ends it here
                self._thread.join()
            _release(self.path.parent, self)

    def _touch(self) -> None:
        before = _modified_ns(self.path)
        with suppress(OSError):
            os.utime(self.path)
        if _modified_ns(self.path) == before:  # some file systems ignore or refuse it
            with self.path.open("r+b") as file:
                file.write(_content(self.holder))


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
    with ExitStack() as ending:  # a signal can raise anywhere from here on
        with writing_to(path):
            folder.mkdir(parents=True, exist_ok=True)
            with _guarded(folder):
                old = _conflicting(folder, path)
                for other in old:
                    found = _found(other)
                    _refuse_if_held(other, folder, lock.holder, is_gone, stale_after_seconds)
                    _remove_dead(other, found, lock.holder)
                for pattern in (f".*{_PROBE}", f".*{_DRAFT}"):  # a crash leaves them
                    for left in folder.glob(pattern):
                        left.unlink(missing_ok=True)
                ending.callback(lock._end)
                _create(path, lock.holder)
                if others := [other for other in _conflicting(folder, path) if other != path]:
                    path.unlink(missing_ok=True)
                    raise _locked(folder, _read(others[0]))
                for claim in [claim for other in {path, *old} for claim in _claims(other)]:
                    claim.unlink(missing_ok=True)
        lock._thread.start()
        yield lock


def remove_dead_locks(folder: Path) -> None:
    """Remove the locks of processes that died in a finished cell, at the very end of their run."""
    if not ((folder / "lock").exists() or (folder / _GUARD).exists()):
        return
    with suppress(MbtError), holding(folder):
        pass


def holders(folder: Path) -> list[Holder]:
    """All recorded holders of the cell and its shards, running or not."""
    return [holder for path in _locks(folder) if (holder := _read(path)) is not None]


def living_and_dead(
    folder: Path, runs: Callable[[JobId], bool | None], *, now: float
) -> tuple[list[Holder], list[Holder]]:
    """Recorded holders of the cell and its shards that live, and those that left a dead lock.

    Writes nothing. Where neither this machine nor the queue knows the holder, its heartbeat counts.

    Args:
        folder: The cell's folder.
        runs: Whether a job runs; None if its queue is unknown.
        now: The time, in seconds since the epoch.
    """
    living: list[Holder] = []
    dead: list[Holder] = []
    for path in _locks(folder):
        age = _age_at(path, now)
        holder = _read(path)
        if holder is None or age is None:
            continue
        is_alive = holder.is_alive_here()
        if is_alive is None and holder.launcher and holder.job:
            is_alive = runs(JobId(holder.launcher, holder.job))
        if is_alive is None:
            is_alive = age < STALE_AFTER_SECONDS
        (living if is_alive else dead).append(holder)
    return living, dead


def _age_at(path: Path, now: float) -> float | None:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return None


@contextmanager
def held_by_children(path: Path, wait: Callable[[], None]) -> Iterator[int]:
    """An flock on a file, until this process and every child that inherits it are gone.

    Does nothing where flock does not work.

    Args:
        path: The file, created if missing.
        wait: Called before it waits for another holder.
    """
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
        yield descriptor
    finally:
        os.close(descriptor)


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
    if holder is None:  # being written; an older one was damaged by a crash
        age = _age_seconds(path)
        is_held = age is not None and abs(age) < HEARTBEAT_SECONDS
    else:
        is_own_job = holder.job is not None and holder.job == mine.job
        is_held = _is_held(path, holder, is_gone, stale_after_seconds, is_own_job=is_own_job)
    if is_held:
        raise _locked(folder, holder)


def _is_held(
    path: Path,
    holder: Holder,
    is_gone: Callable[[JobId], bool],
    stale_after_seconds: float,
    *,
    is_own_job: bool,
) -> bool:
    alive = holder.is_alive_here()
    if alive is not None:
        return alive
    if holder.launcher and holder.job and is_gone(JobId(holder.launcher, holder.job)):
        return False
    age = _age_seconds(path)
    if age is None or (is_own_job and age >= REQUEUED_AFTER_SECONDS):  # it was requeued
        return False
    if -HEARTBEAT_SECONDS < age < stale_after_seconds:
        return True
    return _is_beating(path)


def _is_beating(path: Path) -> bool:
    """Whether the heartbeat moves while this process watches it.

    The last word on a lock that looks dead, or is dated in the future: on some file systems, the
    time of a heartbeat is by the clock of the holder's machine.
    """
    before, end = _modified_ns(path), monotonic() + _WATCH_SECONDS
    while (now := _modified_ns(path)) == before:
        if now is None or monotonic() > end:
            return False
        sleep(_WATCH_POLL_SECONDS)
    return now is not None


def _modified_ns(path: Path) -> int | None:
    """Time of the last heartbeat; opening the file asks the server instead of a cache."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _age_seconds(path: Path) -> float | None:
    """Seconds since the last heartbeat, by the clock of the file system; None without a lock."""
    probe = path.with_name(f".{uuid.uuid4().hex}{_PROBE}")
    try:
        with probe.open("xb") as file:
            now = os.fstat(file.fileno()).st_mtime_ns
    finally:
        probe.unlink(missing_ok=True)
    modified = _modified_ns(path)
    return None if modified is None else (now - modified) / 1e9


def _create(path: Path, holder: Holder) -> None:
    """Write the lock, whole from its first moment; LockedError if there is one."""
    draft = path.with_name(f".{holder.token}{_DRAFT}")
    try:
        draft.write_bytes(_content(holder))
        with suppress(OSError):  # there is one, or the file system has no hard links
            os.link(draft, path)
            return
    finally:
        draft.unlink(missing_ok=True)
    try:
        file = path.open("xb")
    except OSError as error:
        # SFTP has no word for a file that exists: then the system says "not permitted"
        if error.errno != errno.EEXIST and not path.exists():
            raise
        raise _locked(path.parent, _read(path)) from None
    try:
        with file:
            file.write(_content(holder))
    except OSError:  # a full disk
        path.unlink(missing_ok=True)
        raise


def _found(path: Path) -> tuple[bytes, int] | None:
    """Content and time of a lock, which change when another process takes it; None without one."""
    try:
        with path.open("rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _remove_dead(path: Path, dead: tuple[bytes, int] | None, mine: Holder) -> None:
    """Remove a lock that was found dead, and no other."""
    if dead is None:
        return  # released in the meantime
    numbers = [0]
    for claim in _claims(path):
        if not _is_void(claim):
            raise _locked(path.parent, _read(claim))
        numbers.append(int(claim.stem.rpartition(".")[2]))
    # one process can create the next claim
    claim = path.with_name(f".{path.name}.{max(numbers) + 1}{_CLAIM}")
    _create(claim, mine)
    if _found(path) != dead:  # another one was faster, and has removed its claim
        claim.unlink(missing_ok=True)
        raise _locked(path.parent, _read(path))
    path.unlink(missing_ok=True)


def _claims(path: Path) -> list[Path]:
    """Claims to remove a lock that was found dead."""
    return list(path.parent.glob(f".{path.name}.*{_CLAIM}"))


def _is_void(claim: Path) -> bool:
    holder = _read(claim)
    alive = None if holder is None else holder.is_alive_here()
    if alive is not None:
        return not alive
    age = _age_seconds(claim)
    return age is None or abs(age) > _CLAIM_SECONDS


def _content(holder: Holder) -> bytes:
    return orjson.dumps(holder.model_dump(mode="json"))


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _read_patiently(path: Path) -> Holder | None:
    """As `_read`, but a network file system may fail for moments (ESTALE, EIO)."""
    end = monotonic() + _READ_SECONDS
    while True:
        try:
            return Holder.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            if monotonic() < end:
                sleep(_READ_POLL_SECONDS)
            elif isinstance(error, OSError):
                raise ArtifactError(
                    f"`{path}` cannot be read: {error.strerror}", hint="run the same command again"
                ) from error
            else:
                return None


def _locked(folder: Path, holder: Holder | None) -> LockedError:
    who = description(holder) if holder else "a process that is starting"
    return LockedError(
        f"`{folder}` is locked by {who}",
        hint="wait for it or stop it, then run the same command again",
    )


def _release(folder: Path, lock: Lock) -> None:
    if not folder.is_dir():
        return  # removed by hand, and the lock with it
    # what fails here must not hide the error that ends the run
    with suppress(OSError), ExitStack() as guard:
        with suppress(OSError):  # a full disk has no room for it
            guard.enter_context(_guarded(folder))
        now = _read(lock.path)
        if now is not None and now.token == lock.holder.token:
            lock.path.unlink(missing_ok=True)


def description(holder: Holder) -> str:
    """The holder of a lock, for messages."""
    job = f", job {holder.job}" if holder.job else ""
    since = f"{holder.since:%Y-%m-%d %H:%M:%S} UTC"
    return f"process {holder.pid} on {holder.host}{job}, since {since}"


@contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    """Exclusive access to the locks in `folder`; the system releases it when a process dies."""
    path = folder / _GUARD
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        except FileNotFoundError:
            if not folder.is_dir():
                raise
            yield  # over SFTP, another machine has removed it, and this one still remembers it
            return
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
    """Wait for the guard; go on without it where flock does not work."""
    end = monotonic() + _GUARD_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() > end:
                return None
            sleep(_GUARD_POLL_SECONDS)
        except OSError as error:
            if error.errno not in {*_NO_FLOCK, errno.ESTALE}:
                raise
            return None


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # on NFS, removed by another machine
            raise
        return False
