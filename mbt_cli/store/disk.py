"""Writing files so that a crash or a full disk loses nothing, and hashing them."""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from mbt_cli.core.disk_space import free_space
from mbt_cli.core.sync import sync
from mbt_cli.errors import ArtifactError, MbtError

_CHUNK_BYTES = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BLOCKED = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_ROOM = 1 << 20
"""Bytes free below which a write that failed without a reason had no room."""
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries written in Rust report the system's errors."""


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn a refusal of the system while `path` is written into an ArtifactError with a hint.

    Raises:
        ArtifactError: The disk or quota is full, the folder is not writable, or the write failed
            otherwise; everything that was finished before is kept.
    """
    try:
        yield
    except Exception as error:
        refusal = _refusal(error, path)
        if refusal is None:
            raise
        raise refused(refusal, path) from error


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Name `folder` where a disk that is full, or cannot be written, was met by other code."""
    try:
        yield
    except Exception as error:
        refusal = _refusal(error, folder)
        if refusal is None or not is_about_writing(refusal):
            raise
        raise refused(refusal, Path(refusal.filename2 or refusal.filename or folder)) from error


def is_about_writing(error: OSError) -> bool:
    """Whether only a write can fail like this: the disk or quota is full, or read-only."""
    return error.errno in {*_FULL, errno.EROFS}


def _refusal(error: Exception, path: Path) -> OSError | None:
    """The system's error behind an exception while `path` was written, if there is one."""
    if isinstance(error, MbtError) or (isinstance(error, OSError) and error.errno is not None):
        return error if isinstance(error, OSError) else None
    if found := _OS_ERROR.search(str(error)):
        return OSError(int(found[1]), os.strerror(int(found[1])))
    # how polars reports any failed write of a page's header
    if "transport error" in str(error) and _bytes_free(path) < _NO_ROOM:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error if isinstance(error, OSError) else None


def _bytes_free(path: Path) -> int:
    folder = next(folder for folder in (path, *path.parents) if folder.is_dir())
    return shutil.disk_usage(folder).free


def refused(error: OSError, path: Path) -> ArtifactError:
    """The error for a write to `path` that the system refuses: what, why, and what to do."""
    reason, hint = error.strerror or str(error), "run the same command again"
    if error.errno in _FULL:
        reason += f" ({free_space(path)} free there)"
        hint = (
            "free some space (or raise the quota) and run the same command again; everything "
            "finished so far is kept"
        )
    elif error.errno == errno.ENAMETOOLONG:
        hint = "shorten the names, or choose another folder with MBT_RUNS"
    elif error.errno in _FORBIDDEN:
        hint = "make the folder writable, or choose another one with MBT_RUNS"
    elif error.errno == errno.EEXIST and error.filename2 is not None:
        reason = f"this file system cannot rename a file over `{error.filename2}`"
        hint = "`mbt doctor` says what to change"
    elif error.errno in _BLOCKED:
        file = next((p for p in path.parents if p.is_file()), path)
        reason = f"`{file}` is a file where a folder is needed"
        hint = "move it away, or choose another folder with MBT_RUNS"
    return ArtifactError(f"cannot write `{path}`: {reason}", hint=hint)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees either the old content or all of the new.

    Raises:
        ArtifactError: The file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with writing_to(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                sync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(path.parent)


def append_synced(path: Path, content: bytes) -> None:
    """Append to a file, created if missing, and flush it to the disk.

    Raises:
        ArtifactError: The file cannot be written.
    """
    with writing_to(path), path.open("ab") as file:
        file.write(content)
        file.flush()
        sync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power failure, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path, *, is_synced: bool = False) -> str:
    """Hex sha256 of a file's content; `is_synced` also flushes it to the disk."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        if is_synced:
            sync(file.fileno())
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """`sha256_of_file`, cached in this process while the file's size and time do not change."""
    stat = path.stat()
    return _sha256_at(path.resolve(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256_at(path: Path, size: int, modified: int) -> str:
    return sha256_of_file(path)
