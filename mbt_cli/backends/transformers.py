"""`transformers serve` on this machine: any architecture, slow, also without a GPU."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mbt_cli.backends.flags import executable_finding, find_executable, flags_of
from mbt_cli.backends.weights import HubModel, is_folder, weights_identity
from mbt_cli.core.chat import Endpoint, Json
from mbt_cli.core.findings import Finding
from mbt_cli.core.plugin import Flags, RunOnly, Settings, Variable
from mbt_cli.core.serving import ServerPlace
from mbt_cli.core.training_job import Weights
from mbt_cli.inference.server import LOOPBACK, Cause, ServerCommand, running_server
from mbt_cli.interfaces import Backend

_BYTES_PER_TOKEN = 3
_TEMPLATE_TOKENS = 64
_TAKEN = frozenset(
    {"model", "messages", "prompt", "max_tokens", "seed", "stop", "chat_template_kwargs"}
)
_INSTALL = 'pip install "transformers[serving]" torch'
_CAUSES = (
    Cause(r"Missing dependencies for serving", 'pip install "transformers[serving]"'),
    Cause(r"out of memory", "use a smaller model, or set `serve.quantization`"),
    Cause(r"contains custom code", "read the model's code, then set `backend.trust_remote_code`"),
    Cause(r"No such option", "remove the key of `serve` that this version does not know"),
)


class TransformersPlace(Settings):
    """`[place]`: where the model is served; never changes results."""

    executable: str = "transformers"
    """The command, or its path in another environment."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the server. Default: a free port."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Environment variables of the server; secrets are refused: export them, it inherits them."""


class TransformersBackend(Backend):
    """Start `transformers serve`. It has no API key: every process of this machine can use it."""

    only_serves: ClassVar[frozenset[str]] = frozenset({"context", "serve"})
    ignored_sampling: ClassVar[frozenset[str]] = frozenset({"presence_penalty"})

    kind: Literal["transformers"] = "transformers"
    """Names the backend in a manifest."""
    model: HubModel
    """Name on the hub, or a folder with config and weights."""
    revision: str | None = None
    """Revision on the hub."""
    weights_sha256: str | None = None
    """Hash of a trained folder, if known. Default: mbt hashes the folder."""
    context: int = Field(ge=64)
    """Context length in tokens (prompt and reply); `max_tokens = "rest"` is computed from it."""
    trust_remote_code: bool = False
    """Run code from the model's repository."""
    serve: Flags = Field(default_factory=dict)
    """Flags that change results: `dtype`, `quantization`, `reasoning`, ..."""
    place: Annotated[TransformersPlace, RunOnly] = Field(default_factory=TransformersPlace)
    """Where it is served."""

    def weights_name(self) -> str:
        return self.model

    def identity(self) -> Mapping[str, Json]:
        weights = weights_identity(self.model, self.revision, self.weights_sha256)
        return {**weights, "context": self.context, "serve": self.serve}

    def flags(self) -> tuple[str, ...]:
        """Every flag except the address."""
        trust: dict[str, Json] = {"trust_remote_code": True} if self.trust_remote_code else {}
        return flags_of({**trust, **self.serve}, {})

    def check(self, environment: Mapping[str, str]) -> None:
        find_executable(self.place.executable, environment, install=_INSTALL)

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        yield executable_finding(name, self.place.executable, environment, install=_INSTALL)

    def gpus(self) -> int:
        return 1

    def weights(self, place: ServerPlace) -> Weights:
        return Weights(
            model=self.model, revision=self.revision, trust_remote_code=self.trust_remote_code
        )

    def serving(self, folder: str, sha256: str) -> Backend:
        trained = {"model": folder, "revision": None, "weights_sha256": sha256}
        return self.model_copy(update=trained)

    def open(self, place: ServerPlace) -> AbstractContextManager[Endpoint]:
        return self._open(place)

    @contextmanager
    def _open(self, place: ServerPlace) -> Iterator[Endpoint]:
        executable = find_executable(self.place.executable, place.environment, install=_INSTALL)

        def command_for(port: int, key: str) -> ServerCommand:
            address = ("--host", LOOPBACK, "--port", str(port))
            return ServerCommand(
                (executable, "serve", self._name(), *address, *self.flags()),
                self._name(),
                environment=self.place.environment,
                causes=_CAUSES,
            )

        with running_server(command_for, place, port=self.place.port) as server:
            yield Endpoint(
                base_url=server.base_url,
                model=self._name(),
                context=self.context,
                supports_schema=False,
                version="transformers serve",
                flags=self.flags(),
                shape=self._shape,
                alive=server.alive,
                vitals=server.vitals,
            )

    def _name(self) -> str:
        if is_folder(self.model) or self.revision is None:
            return self.model
        return f"{self.model}@{self.revision}"

    def _shape(self, body: dict[str, Json]) -> dict[str, Json]:
        """A request body for this server, with the sampling in a generation config.

        Without one the server uses the model's own, with its top_k and a limit of 1,024 tokens. It
        refuses unknown fields.
        """
        limit = body.get("max_tokens") or self._rest(body["messages"])
        drawn = {k: v for k, v in body.items() if k not in _TAKEN}
        is_drawn = bool(drawn.get("temperature", 1.0))
        config = {**drawn, "do_sample": is_drawn, "max_new_tokens": limit}
        if is_drawn:
            config.setdefault("top_k", 0)
        else:
            penalty = {k: v for k, v in drawn.items() if k == "repetition_penalty"}
            config = {**penalty, "do_sample": False, "max_new_tokens": limit}
        kept = {k: v for k, v in body.items() if k in _TAKEN}
        return {**kept, "max_tokens": limit, "generation_config": json.dumps(config)}

    def _rest(self, messages: list[Mapping[str, str]]) -> int:
        """Tokens that the context leaves, by a generous estimate of the prompt."""
        size = sum(len(message["content"].encode()) for message in messages)
        return max(1, self.context - size // _BYTES_PER_TOKEN - _TEMPLATE_TOKENS)
