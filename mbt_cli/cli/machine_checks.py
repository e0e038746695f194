"""Checks of this machine for `mbt doctor`: disk, GPUs, Python, extras, plug-ins, tokens."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from mbt_cli.backends.weights import hub_cache
from mbt_cli.cli.file_systems import file_system_findings
from mbt_cli.core.findings import (
    EXTRAS,
    Finding,
    absent,
    answer_of,
    broken,
    installed,
    missing_packages,
    ok,
    pip_line,
)
from mbt_cli.plugins import installed_plugins
from mbt_cli.settings import Machine

_LEAST_BYTES = 1 << 30


def disk_findings(machine: Machine) -> Iterator[Finding]:
    """The folders that mbt writes to."""
    environment = machine.environment
    temporary = Path(environment.get("TMPDIR") or tempfile.gettempdir())
    runs = _folder("runs", machine.runs, "MBT_RUNS", is_needed=True)
    yield runs
    if runs.state == "ok":
        yield from file_system_findings(_nearest(machine.runs))
    yield _folder("cache", machine.cache, "MBT_CACHE", is_needed=True)
    yield _folder("hub cache", hub_cache(environment), "HF_HOME", is_needed=False)
    yield _folder("temporary", temporary, "TMPDIR", is_needed=True)
    if temporary.is_dir():
        yield _execution(temporary)


def _folder(what: str, folder: Path, variable: str, *, is_needed: bool) -> Finding:
    wrong = broken if is_needed else absent
    there = _nearest(folder)
    do = f"choose another folder: export {variable}=/path/with/room"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return wrong("disk", what, f"{folder} cannot be written", do)
    state = os.statvfs(there)
    free = state.f_bavail * state.f_frsize
    if state.f_files and not state.f_favail:
        return wrong("disk", what, f"{folder}: no inode is left", do)
    if free < _LEAST_BYTES:
        return wrong("disk", what, f"{folder}: {decimal(free)} free", f"free some space, or {do}")
    return ok("disk", what, f"{folder}: {decimal(free)} free")


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    path = folder.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _execution(temporary: Path) -> Finding:
    if os.statvfs(temporary).f_flag & os.ST_NOEXEC:
        found = f"{temporary} forbids execution; vLLM's caches go to mbt's cache"
        return absent("disk", "execution", found, "export TMPDIR=/path/that/may/execute")
    return ok("disk", "execution", f"{temporary} allows execution")


_FIELDS = "index,name,memory.total,memory.used,driver_version"
_DRIVER_SECONDS = 20
_WITHOUT = "nothing to do: hosted and embedded models need no GPU"


@dataclass(frozen=True, slots=True)
class GPU:
    """One GPU; memory in MiB, null if the driver does not report it."""

    index: str
    name: str
    memory: int | None
    used: int | None
    driver: str


def gpu_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Each GPU, or the reason why there is none."""
    if shutil.which("nvidia-smi", path=environment.get("PATH")) is None:
        yield absent("GPU", "driver", "no `nvidia-smi`", _WITHOUT)
        return
    command = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
    done = answer_of(command, environment, seconds=_DRIVER_SECONDS)
    if done is None:
        yield absent("GPU", "driver", "`nvidia-smi` does not answer", "nvidia-smi")
        return
    gpus = gpus_of(done.stdout)
    if done.returncode or not gpus:
        words = (done.stdout + done.stderr).strip().splitlines()
        yield absent("GPU", "driver", words[-1] if words else "shows no GPU", "nvidia-smi")
        return
    yield from (_gpu_finding(gpu) for gpu in gpus)
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        yield ok("GPU", "CUDA_VISIBLE_DEVICES", visible or "empty: no GPU is used")


def gpus_of(text: str) -> Sequence[GPU]:
    """Parse the output of `nvidia-smi --query-gpu`, one GPU per line.

    Example:
        >>> gpus_of("0, NVIDIA H200, 143771, 4, 570.86.15")[0].memory
        143771
    """
    fields = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [
        GPU(index, name, _number(memory), _number(used), driver)
        for index, name, memory, used, driver in (row for row in fields if len(row) == 5)
    ]


def _gpu_finding(gpu: GPU) -> Finding:
    found = f"{gpu.name}, driver {gpu.driver}"
    if gpu.memory is not None and gpu.used is not None:
        free = (gpu.memory - gpu.used) / 1024
        found = f"{gpu.name}, {free:.0f} of {gpu.memory / 1024:.0f} GiB free, driver {gpu.driver}"
    return ok("GPU", gpu.index, found)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


_OLDEST = (3, 11)
_SECONDS = 5


def python_findings() -> Iterator[Finding]:
    """This Python, and mbt in it."""
    running = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < _OLDEST:
        yield broken("Python", "version", running, "install Python 3.11 or newer")
    else:
        yield ok("Python", "version", f"{running} at {sys.executable}")
    own = installed("mbt-cli")
    if own is None:
        yield absent("Python", "mbt-cli", "runs without being installed", "pip install mbt-cli")
    else:
        yield ok("Python", "mbt-cli", own)


def extra_findings() -> Iterator[Finding]:
    """Each extra, with the line that installs it."""
    for name, extra in EXTRAS.items():
        missing = missing_packages(name)
        here = [f"{p} {installed(p)}" for p in extra.packages if p not in missing]
        if not missing:
            yield ok("extras", name, f"{', '.join(here)}: for {extra.purpose}")
            continue
        what = "not installed" if not here else f"lacks {', '.join(missing)}"
        yield absent("extras", name, f"{what}: for {extra.purpose}", pip_line(name))


def plugin_findings() -> Iterator[Finding]:
    """Plug-ins of installed packages; a broken one only concerns studies that use it."""
    found = installed_plugins()
    for (family, kind), cls in sorted(found.classes.items(), key=lambda item: item[0]):
        yield ok("plug-ins", kind, f"{family}, from `{cls.__module__}`")
    for problem in found.problems:
        yield absent("plug-ins", "broken", problem, "correct the package, or uninstall it")


_USUAL = {
    "HF_TOKEN": "gated and private repositories of the hub",
    "WANDB_API_KEY": "training curves online",
}


def token_findings(environment: Mapping[str, str], needed: Mapping[str, str]) -> Iterator[Finding]:
    """The usual tokens, and those that a manifest names.

    Args:
        environment: The process environment, `.env` merged in.
        needed: Variable to the model that needs it.
    """
    for name, purpose in _USUAL.items():
        if name not in needed:
            yield _finding(name, purpose, environment, is_needed=False)
    for name, model in needed.items():
        yield _finding(name, f"the model {model}", environment, is_needed=True)


def _finding(
    name: str, purpose: str, environment: Mapping[str, str], *, is_needed: bool
) -> Finding:
    if environment.get(name, "").strip():
        return ok("tokens", name, f"is set: for {purpose}")
    if name == "HF_TOKEN" and _is_logged_in():
        return ok("tokens", name, f"set by `hf auth login`: for {purpose}")
    found = f"is not set: for {purpose}"
    wrong = broken if is_needed else absent
    return wrong("tokens", name, found, f"export {name}=..., or a line of .env")


def _is_logged_in() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
