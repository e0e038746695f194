"""The code, packages and machine at work, collected once per process in the background."""

import hashlib
import os
import platform
import shutil
import socket
import subprocess
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from threading import Thread

import mbt_cli
from mbt_cli.store.lineage import CodeRecord, Host

_PACKAGES = (
    "polars", "pyarrow", "pydantic", "numpy", "aiohttp", "httptools", "orjson", "openai",
    "huggingface-hub", "xllamacpp", "vllm", "torch", "transformers", "trl", "peft", "accelerate",
    "flash-attn", "liger-kernel", "wandb",
)  # fmt: skip
_GIT_SECONDS = 10
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


def _git(root: Path, *arguments: str) -> bytes | None:
    """Output of git; None if git is missing or too slow, or this is not a checkout."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run(
            [git, "-C", str(root), *arguments],
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
