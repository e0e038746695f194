"""The code, packages and machine at work, collected once per process in the background."""

import hashlib
import os
import platform
import shutil
import socket
import stat
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from threading import Thread, Timer

import mbt_cli
from mbt_cli.core.chat import Json
from mbt_cli.core.secrets import without_secrets
from mbt_cli.store.lineage import CodeRecord, Host

_PACKAGES = (
    "polars", "pyarrow", "pydantic", "numpy", "aiohttp", "httptools", "orjson", "openai",
    "huggingface-hub", "xllamacpp", "vllm", "torch", "transformers", "trl", "peft", "accelerate",
    "flash-attn", "liger-kernel", "wandb",
)  # fmt: skip
_GIT_SECONDS = 10
GIT_STATUS, GIT_DIFF, GIT_UNTRACKED = "git_status.txt", "git_diff.patch", "git_untracked"
_MOST_UNTRACKED = 200
_MOST_UNTRACKED_BYTES = 100_000
_KEY_FILES = (".env*", "*.pem", "*.key", "id_rsa*", "id_ed25519*", ".netrc", "*credentials*")
"""Names of files that hold keys, which need not have the shape of one."""
_MOST_BYTES = 1 << 20
_CUT = "\n[cut here: longer than 1 MB]\n"
_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Provenance:
    """The part of a lineage that is the same for all cells of a process."""

    code: CodeRecord
    packages: dict[str, str]
    host: Host


def begin() -> None:
    """Start collecting in the background.

    Called at the start of a run, so that the lineage names the code that was loaded, even if the
    checkout changes later, and nothing waits for git.
    """
    _collecting()


def collected() -> Provenance:
    """The state when collecting started, which is now if `begin` was not called."""
    return _collecting().result()


@lru_cache(maxsize=1)
def _collecting() -> Future[Provenance]:
    found: Future[Provenance] = Future()

    def collect() -> None:
        try:
            found.set_result(Provenance(code(), packages(), host()))
        except BaseException as error:
            found.set_exception(error)
            raise

    Thread(target=collect, name="provenance", daemon=True).start()
    return found


def code() -> CodeRecord:
    """Version of mbt and, in a git checkout, its commit and the hash of local changes."""
    root = Path(mbt_cli.__file__).resolve().parent.parent
    version = _version("mbt-cli") or "unknown"
    # a package installed inside another repository is not tracked by it
    if _git(root, "ls-files", "--error-unmatch", "mbt_cli/__init__.py") is None:
        return CodeRecord(version=version)
    commit = _git(root, "rev-parse", "HEAD")
    difference = _git(root, "diff", "HEAD", "--no-ext-diff", "--no-color")
    return CodeRecord(
        version=version,
        commit=commit.decode().strip() if commit else None,
        dirty=bool(difference),
        diff_sha256=hashlib.sha256(difference).hexdigest() if difference else None,
    )


def packages() -> dict[str, str]:
    """Versions of the installed packages that can change results."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {name: version for name, version in versions.items() if version}


def host() -> Host:
    """This machine."""
    return Host(
        name=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cpus=_processors(),
        gpus=gpu_names(),
    )


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs of this machine; empty without an NVIDIA driver."""
    names = []
    try:
        for information in sorted(_GPU_FOLDER.glob("*/information")):
            for line in information.read_text(encoding="utf-8").splitlines():
                if line.startswith("Model:"):
                    names.append(line.partition(":")[2].strip())
    except OSError:
        return ()  # provenance must never stop a run
    return tuple(names)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def write_checkout(of: Path, into: Path, runs: Path) -> dict[str, Json] | None:
    """Write the state of the git checkout that a folder is in: its status, and its local changes.

    Secrets, and what looks like one, are masked. A file of more than 1 MB is cut. Files that git
    does not track are in the status by name; texts among them, unless git ignores them, are copied
    to `git_untracked/`: up to 200 files of 100 kB and 1 MB in all, without links and files of keys.

    Args:
        of: A folder in the checkout.
        into: The folder, which exists, for `git_status.txt`, `git_diff.patch`, `git_untracked/`.
        runs: The folder with the cells of all studies, from which nothing is copied.

    Returns:
        Commit, branch, and whether tracked files differ from the commit; None outside of a
        checkout, and if git does not answer within 10 seconds.

    Raises:
        OSError: A file cannot be written.
    """
    # a status refreshes the index otherwise, and starts what the checkout names as a monitor
    quiet = ("--no-optional-locks", "-c", "core.fsmonitor=false")
    status = _git(of, *quiet, "status", "--short", "--branch", most=_MOST_BYTES)
    if status is None:
        return None
    commit, branch = (_git(of, "rev-parse", *what, "HEAD") for what in ((), ("--abbrev-ref",)))
    plain = ("--no-ext-diff", "--no-textconv", "--no-color")
    difference = _git(of, *quiet, "diff", "HEAD", *plain, most=_MOST_BYTES) if commit else None
    for name, content in ((GIT_STATUS, status), (GIT_DIFF, difference or b"")):
        text = content[:_MOST_BYTES].decode(errors="replace")
        text = without_secrets(text) + (_CUT if len(content) > _MOST_BYTES else "")
        (into / name).write_text(text, encoding="utf-8")
    top = _git(of, "rev-parse", "--show-toplevel")
    if top is not None:
        _copy_untracked(Path(os.fsdecode(top.rstrip(b"\n"))), quiet, into, runs.resolve())
    return {
        "commit": commit.decode().strip() if commit else None,
        "branch": branch.decode(errors="replace").strip() if branch else None,
        "dirty": bool(difference),
    }


def _copy_untracked(top: Path, quiet: Sequence[str], into: Path, runs: Path) -> None:
    listing = _git(
        top, *quiet, "ls-files", "--others", "--exclude-standard", "-z", most=_MOST_BYTES
    )
    left, count = _MOST_BYTES, 0
    names = (listing or b"").split(b"\0")[:-1]  # the last one is empty, or was cut
    for name in map(os.fsdecode, names):
        path = top / name
        is_key = any(fnmatch(path.name.lower(), pattern) for pattern in _KEY_FILES)
        if is_key or without_secrets(name) != name or path.resolve().is_relative_to(runs):
            continue
        content = _small_text(path)
        if content is None or len(content) > left:
            continue
        copy = into / GIT_UNTRACKED / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(without_secrets(content.decode()), encoding="utf-8", newline="")
        left, count = left - len(content), count + 1
        if count == _MOST_UNTRACKED:
            return


def _small_text(path: Path) -> bytes | None:
    """The content of a small file in UTF-8; None for others, links, pipes and what is gone."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            content = file.read(_MOST_UNTRACKED_BYTES + 1)
        content.decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if len(content) > _MOST_UNTRACKED_BYTES or b"\0" in content else content


def _git(root: Path, *arguments: str, most: int | None = None) -> bytes | None:
    """Output of git; None if git is missing or too slow, or this is not a checkout.

    Args:
        root: Where git runs.
        arguments: Its arguments.
        most: Read no more than this number of bytes and one.
    """
    git = shutil.which("git")
    if git is None:
        return None
    try:
        with subprocess.Popen(
            [git, "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as running:
            assert running.stdout is not None
            timer = Timer(_GIT_SECONDS, running.kill)
            timer.daemon = True
            timer.start()
            output = running.stdout.read(-1 if most is None else most + 1)
            if is_cut := most is not None and len(output) > most:
                running.kill()
            code = running.wait()
            timer.cancel()
    except OSError:
        return None
    return output if code == 0 or is_cut else None
