"""The doctor on what a manifest fetches: is it here already?"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson

from mbt_cli.backends.llamacpp_weights import FILE
from mbt_cli.errors import MbtError, MissingInputError
from mbt_cli.machine.findings import Finding, absent, broken, ok
from mbt_cli.manifest.load import Manifest
from mbt_cli.planning.fetching import Needed, needed_by
from mbt_cli.settings import Machine
from mbt_cli.stages.runner import hub_access
from mbt_cli.store.hub import HubFiles, fetch_files

_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


def stock_findings(manifest: Manifest, machine: Machine) -> Iterator[Finding]:
    """A line for each thing that the study fetches, without asking the network."""
    try:
        needed = needed_by(manifest, machine, models=(), benchmarks=())
    except MbtError as error:
        yield broken("data", manifest.study, error.message, error.hint or "correct the manifest")
        return
    for one in needed:
        if (where := _here(one, machine)) is not None:
            yield ok("data", one.name, f"{one.what}: {where}")
            continue
        do = f"mbt data fetch {manifest.path}"
        if machine.is_offline:
            do += ", where there is a network"
            yield broken("data", one.name, f"{one.what} is not here, and mbt is offline", do)
        else:
            yield absent("data", one.name, f"{one.what} is not here; a run fetches it", do)


def _here(needed: Needed, machine: Machine) -> Path | None:
    """Where all of it is on this machine; None when something is missing."""
    if needed.request is None:
        path = machine.cache / "weights" / FILE
        return path if path.is_file() else None
    try:
        files = fetch_files(needed.request, replace(hub_access(machine), offline=True))
    except MissingInputError:
        return None
    is_whole = needed.request.type != "model" or _has_weights(files)
    return files.folder if is_whole else None


def _has_weights(files: HubFiles) -> bool:
    """Whether every shard is there: a broken download leaves a folder with some."""
    names = {str(path.relative_to(files.folder)) for path in files.paths}
    if _INDEX in names:
        index = orjson.loads((files.folder / _INDEX).read_bytes())
        return set(index["weight_map"].values()) <= names
    return any(name.endswith(_WEIGHTS) for name in names)
