"""The doctor on disks: room, rights, and whether what is written can be executed."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.filesize import decimal

from mbt_cli.backends.llamacpp_weights import FILE
from mbt_cli.machine.findings import Finding, absent, broken, ok
from mbt_cli.settings import Machine

_LEAST_BYTES = 1 << 30


def disk_findings(machine: Machine) -> Iterator[Finding]:
    """The folders that mbt writes to."""
    environment = machine.environment
    temporary = Path(environment.get("TMPDIR") or tempfile.gettempdir())
    yield _folder("runs", machine.runs, "MBT_RUNS", is_needed=True)
    yield _folder("cache", machine.cache, "MBT_CACHE", is_needed=True)
    yield _folder("hub cache", hub_cache(environment), "HF_HOME", is_needed=False)
    yield _folder("temporary", temporary, "TMPDIR", is_needed=True)
    if temporary.is_dir():
        yield _execution(temporary)
    yield _weights(machine.cache)


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps what it fetched, by its own rules."""
    if named := environment.get("HF_HUB_CACHE"):
        return Path(named).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or str(Path(base) / "huggingface")
    return Path(home).expanduser() / "hub"


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
    """The folder itself, or what is there of the way to it."""
    path = folder.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _execution(temporary: Path) -> Finding:
    if os.statvfs(temporary).f_flag & os.ST_NOEXEC:
        found = f"{temporary} may not execute what it holds; vLLM's caches go to mbt's cache"
        return absent("disk", "execution", found, "export TMPDIR=/path/that/may/execute")
    return ok("disk", "execution", f"{temporary} may execute what it holds")


def _weights(cache: Path) -> Finding:
    path = cache / "weights" / FILE
    if path.is_file():
        return ok("caches", "embedded model", f"{path}: {decimal(path.stat().st_size)}")
    return absent(
        "caches", "embedded model", "not fetched yet (98 MB)", "mbt data fetch quickstart.toml"
    )
