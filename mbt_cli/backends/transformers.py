"""`transformers serve` on this machine: any architecture, slowly, without a GPU too."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Literal

from pydantic import Field

from mbt_cli.backends.flags import find_executable, flags_of
from mbt_cli.backends.weights import is_folder, weights_identity
from mbt_cli.core.chat import Endpoint, Json
from mbt_cli.core.model import RunOnly, Settings
from mbt_cli.core.serving import ServerPlace
from mbt_cli.core.training_job import Weights
from mbt_cli.inference.server import LOOPBACK, Cause, ServerCommand, running_server
from mbt_cli.interfaces import Backend

_BYTES_PER_TOKEN = 3
_TEMPLATE_TOKENS = 64
_TAKEN = frozenset({"model", "messages", "max_tokens", "seed", "stop", "chat_template_kwargs"})
_CAUSES = (
    Cause(r"Missing dependencies for serving", 'pip install "transformers[serving]"'),
    Cause(r"out of memory", "take a smaller model, or `serve.quantization`"),
    Cause(r"contains custom code", "read the model's code, then set `backend.trust_remote_code`"),
    Cause(r"No such option", "this version does not know a key of `serve`: take it out"),
)


class TransformersPlace(Settings):
    """`[place]`: where it is served; never counts for results."""

    executable: str = "transformers"
    """The command, or its path in another environment."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Left out, a free one is found."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for the server."""


class TransformersBackend(Backend):
    """Start `transformers serve`; it knows no key, so every process of this machine may ask it."""

    kind: Literal["transformers"] = "transformers"
    """Names the backend in a manifest."""
    model: str = Field(min_length=1)
    """Name on the hub, or a folder with config and weights."""
    revision: str | None = None
    """Revision on the hub."""
    weights_sha256: str | None = None
    """Hash of a trained folder, where it is known; left out, a folder is hashed."""
    context: int = Field(ge=64)
    """Tokens of prompt and reply together; what `max_tokens = "rest"` is worked out from."""
    trust_remote_code: bool = False
    """Run the code that the model's repository brings."""
    serve: dict[str, Json] = Field(default_factory=dict)
    """Flags that count for results: `dtype`, `quantization`, `reasoning`, ..."""
    place: Annotated[TransformersPlace, RunOnly] = Field(default_factory=TransformersPlace)
    """Where it is served."""

    def identity(self) -> Mapping[str, Json]:
        weights = weights_identity(self.model, self.revision, self.weights_sha256)
        return {**weights, "context": self.context, "serve": self.serve}

    def flags(self) -> tuple[str, ...]:
        """Every flag but the address."""
        trust: dict[str, Json] = {"trust_remote_code": True} if self.trust_remote_code else {}
        return flags_of({**trust, **self.serve}, {})

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
        executable = find_executable(
            self.place.executable,
            place.environment,
            install='pip install "transformers[serving]" torch',
        )

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
            )

    def _name(self) -> str:
        if is_folder(self.model) or self.revision is None:
            return self.model
        return f"{self.model}@{self.revision}"

    def _shape(self, body: dict[str, Json]) -> dict[str, Json]:
        """A body as this server takes it: sampling goes into a generation config of its own.

        Without one it takes the model's, with its top_k and its limit of 1,024 tokens, and it
        refuses fields that it does not know.
        """
        limit = body.get("max_tokens") or self._rest(body["messages"])
        drawn = {k: v for k, v in body.items() if k not in _TAKEN}
        is_drawn = bool(drawn.get("temperature", 1.0))
        config = {**drawn, "do_sample": is_drawn, "max_new_tokens": limit}
        if is_drawn:
            config.setdefault("top_k", 0)
        else:
            config = {"do_sample": False, "max_new_tokens": limit}
        kept = {k: v for k, v in body.items() if k in _TAKEN}
        return {**kept, "max_tokens": limit, "generation_config": json.dumps(config)}

    def _rest(self, messages: list[Mapping[str, str]]) -> int:
        """What the context leaves, by an estimate of the prompt that is rather too long."""
        size = sum(len(message["content"].encode()) for message in messages)
        return max(1, self.context - size // _BYTES_PER_TOKEN - _TEMPLATE_TOKENS)
