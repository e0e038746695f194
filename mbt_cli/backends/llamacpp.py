"""llama.cpp inside a process of ours, on any machine: the embedded model or a GGUF file."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mbt_cli.backends import llamacpp_server
from mbt_cli.backends.llamacpp_weights import NAME, SHA256, smollm2_weights
from mbt_cli.backends.weights import file_sha256
from mbt_cli.core.chat import Endpoint, Json
from mbt_cli.core.model import RunOnly
from mbt_cli.core.places import ServerPlace
from mbt_cli.core.training_job import TRAINED_GGUF, Weights
from mbt_cli.errors import BackendError, UsageError
from mbt_cli.inference.server import Cause, ServerCommand, running_server
from mbt_cli.interfaces import Backend

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
