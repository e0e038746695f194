"""Whether the file system of the runs folder does what mbt needs: locks and renames."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mbt_cli.core.findings import Finding, absent, broken, ok

_MOUNTS = Path("/proc/self/mountinfo")
_SECONDS = 20
_TRY_LOCK = """
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1], "rb+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(1)
"""
_KEPT_LOCAL = {
    "nfs": {"nolock", "local_lock=flock", "local_lock=all"},
    "nfs4": {"local_lock=flock", "local_lock=all"},
    "cifs": {"nobrl"},
    "smb3": {"nobrl"},
    "lustre": {"localflock"},
}
"""Type of a network file system to mount options that keep flock on each machine."""
_ALWAYS_LOCAL = frozenset(
    {
        *("beegfs", "9p", "virtiofs", "vboxsf", "afs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone"),
        *("fuse.gcsfuse", "fuse.goofys", "fuse.blobfuse", "fuse.blobfuse2", "fuse.mount-s3"),
        *("fuse.curlftpfs", "fuse.davfs", "fuse.gvfsd-fuse", "fuse.mountpoint-s3"),
    }
)
"""Types that never pass flock on to the server, or only if its owner has asked for it."""
_ADVICE = (
    "run a cell on one machine at a time; mount with `flock`, or choose another folder: "
    "export MBT_RUNS=/path"
)


def file_system_of(folder: Path) -> tuple[str, frozenset[str]]:
    """Type and mount options of the file system of a folder; empty if the system has no list."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return "", frozenset()
    place = Path(os.path.realpath(folder))
    deepest, found = -1, ("", frozenset[str]())
    for line in lines:
        mount, _, about = line.partition(" - ")
        fields, rest = mount.split(" "), about.split(" ")
        point = Path(_unescaped(fields[4]))
        if len(point.parts) >= deepest and place.is_relative_to(point):
            options = {*fields[5].split(","), *rest[-1].split(",")}
            deepest, found = len(point.parts), (rest[0], frozenset(options))
    return found


def _unescaped(text: str) -> str:
    r"""A path in the list of mounts.

    Example:
        >>> _unescaped(r"/my\040disk")
        '/my disk'
    """
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def one_machine_locks(folder: Path) -> str | None:
    """Why flock excludes only processes of one machine here; None if nothing is known of that."""
    kind, options = file_system_of(folder)
    if kind in _ALWAYS_LOCAL:
        return f"{kind} keeps flock on each machine"
    if kind == "lustre" and not options & {"flock", "localflock"}:
        return "lustre is mounted without `flock`"
    if found := options & _KEPT_LOCAL.get(kind, set()):
        return f"{kind} is mounted with `{min(found)}`, which keeps flock on each machine"
    return None


def file_system_findings(folder: Path) -> Iterator[Finding]:
    """Try what mbt does in a folder: lock, create exclusively, rename over a file."""
    kind = file_system_of(folder)[0] or "its file system"
    with tempfile.TemporaryDirectory(prefix=".mbt-doctor-", dir=folder) as trial:
        held, other = Path(trial) / "held", Path(trial) / "other"
        for path in (held, other):
            path.touch()
        why = _lock_problem(held) or one_machine_locks(folder)
        if why is None:
            yield ok("disk", "locks", f"{kind}: a lock excludes other processes")
        else:
            yield absent("disk", "locks", f"{folder}: {why}", _ADVICE)
        if why := _rename_problem(other, held):
            do = "choose another folder: export MBT_RUNS=/path"
            if "fuse" in kind:
                do = f"mount with `-o workaround=rename` (SFTP), or {do}"
            yield broken("disk", "renames", f"{folder} ({kind}): {why}", do)


def _lock_problem(path: Path) -> str | None:
    """Why flock does not exclude a second process of this machine; None if it does."""
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"flock is not supported ({error.strerror})"
        command = [sys.executable, "-c", _TRY_LOCK, str(path)]
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    return None if done.returncode else "flock does not hold: two processes got the same lock"


def _rename_problem(source: Path, target: Path) -> str | None:
    try:
        source.replace(target)
    except OSError as error:
        return f"cannot rename a file over another one ({error.strerror})"
    try:
        target.open("xb").close()
    except FileExistsError:
        return None
    return "creates a file twice that should be created once"
