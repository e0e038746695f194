"""Writing files so that a crash, a full disk or a missing right loses nothing and says so."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mbt_cli.errors import ArtifactError

_CHUNK_BYTES = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals while `path` is written into ArtifactError.

    Raises:
        ArtifactError: The disk or quota is full, the folder cannot be written, or the write
            failed in another way; what had been finished before stays as it was.
    """
    try:
        yield
    except OSError as error:
        raise _as_artifact_error(error, path) from error


def _as_artifact_error(error: OSError, path: Path) -> ArtifactError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return ArtifactError(
            f"cannot write `{path}`: {reason}",
            hint="free some space (or raise the quota) and run the same command again; "
            "everything finished so far is kept",
        )
    if error.errno in _FORBIDDEN:
        return ArtifactError(
            f"cannot write `{path}`: {reason}",
            hint="make the folder writable, or choose another one with MBT_RUNS",
        )
    if error.errno in _IN_THE_WAY:
        file = next((p for p in path.parents if p.is_file()), path)
        return ArtifactError(
            f"cannot write `{path}`: `{file}` is a file where a folder is needed",
            hint="move it away, or choose another folder with MBT_RUNS",
        )
    return ArtifactError(f"cannot write `{path}`: {reason}", hint="run the same command again")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: a reader sees the old bytes or the new, never a part.

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
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some network file systems refuse to sync a folder; the renames are done all the same
        if error.errno not in {errno.EINVAL, errno.EBADF, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path, *, sync: bool = False) -> str:
    """Hex sha256 of a file's bytes; `sync` also makes sure that they are on the disk."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        if sync:
            os.fsync(file.fileno())
    return digest.hexdigest()
