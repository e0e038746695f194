"""Log-probabilities of given texts by transformers on this machine, in float32 on the CPU."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mbt_cli.backends import likelihood_server
from mbt_cli.backends.weights import HubModel, is_folder, weights_identity
from mbt_cli.core.chat import Endpoint, Json, Wants
from mbt_cli.core.findings import Finding, broken, missing_packages, ok, pip_line
from mbt_cli.core.plugin import RunOnly, Settings, Variable
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import UsageError
from mbt_cli.inference.server import Cause, ServerCommand, running_server
from mbt_cli.interfaces import Backend

_EXTRA = "train"
_WORK = "mbt:tokens_scored_total"
_CAUSES = (
    Cause(r"No module named", pip_line(_EXTRA)),
    Cause(r"out of memory", "lower `place.batch_tokens`, or use a smaller model"),
    Cause(r"contains custom code", "read the model's code, then set `backend.trust_remote_code`"),
)


class LikelihoodPlace(Settings):
    """`[place]`: where the model is computed; never changes results but by rounding."""

    python: str | None = None
    """Python of an environment with torch and transformers. Default: mbt's own."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where it is computed."""
    batch_tokens: int = Field(default=2048, ge=1)
    """Tokens in one batch, padding included; a longer text is a batch of its own. The memory for
    them is 4 bytes times the size of the vocabulary each."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0 uses all cores."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the server. Default: a free port."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Environment variables of the process; secrets are refused: export them, it inherits them."""


class TransformersLikelihoodBackend(Backend):
    """Log-probabilities of given texts and of first tokens, by transformers; it writes no replies.

    For judges on likelihoods where vLLM does not run, or where rounding of bfloat16 is too coarse.
    A model without a chat template reads the turns with empty lines between them.
    """

    can_give: ClassVar[tuple[Wants, ...]] = ("top_logprobs", "likelihood")
    only_serves: ClassVar[frozenset[str]] = frozenset({"dtype"})

    kind: Literal["transformers_likelihood"] = "transformers_likelihood"
    """Names the backend in a manifest."""
    model: HubModel
    """Name on the hub, or a folder with config and weights."""
    revision: str | None = None
    """Revision on the hub."""
    weights_sha256: str | None = None
    """Hash of a trained folder, if known. Default: mbt hashes the folder."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Numbers that it computes with."""
    trust_remote_code: bool = False
    """Run code from the model's repository."""
    place: Annotated[LikelihoodPlace, RunOnly] = Field(default_factory=LikelihoodPlace)
    """Where it is computed."""

    def weights_name(self) -> str:
        return self.model

    def identity(self) -> Mapping[str, Json]:
        weights = weights_identity(self.model, self.revision, self.weights_sha256)
        return {**weights, "dtype": self.dtype}

    def check(self, environment: Mapping[str, str]) -> None:
        self._python()

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        what = f"model {name}"
        try:
            yield ok("needs", what, f"computed by {self._python()}")
        except UsageError as error:
            yield broken("needs", what, error.message, error.hint or pip_line(_EXTRA))

    def gpus(self) -> int:
        return int(self.place.device == "cuda")

    def serving(self, folder: str, sha256: str) -> Backend:
        trained = {"model": folder, "revision": None, "weights_sha256": sha256}
        return self.model_copy(update=trained)

    def open(self, place: ServerPlace) -> AbstractContextManager[Endpoint]:
        return self._open(place)

    @contextmanager
    def _open(self, place: ServerPlace) -> Iterator[Endpoint]:
        python = self._python()

        def command_for(port: int, key: str) -> ServerCommand:
            settings = {
                "model": str(Path(self.model).expanduser().absolute())
                if is_folder(self.model)
                else self.model,
                "revision": self.revision,
                "trust_remote_code": self.trust_remote_code,
                "dtype": self.dtype,
                "device": self.place.device,
                "batch_tokens": self.place.batch_tokens,
                "threads": self.place.threads,
                "name": self._name(),
                "port": port,
            }
            return ServerCommand(
                (python, "-P", likelihood_server.__file__, json.dumps(settings)),
                self._name(),
                environment=self.place.environment,
                work=_WORK,
                causes=_CAUSES,
            )

        with running_server(command_for, place, port=self.place.port) as server:
            found = server.get("/version")
            about = found if isinstance(found, dict) else {}
            yield Endpoint(
                base_url=server.base_url,
                model=self._name(),
                api_key=server.api_key,
                context=about.get("context"),
                supports_schema=False,
                sends_seed=False,
                version=f"transformers {about.get('version', '')}".strip(),
                flags=(f"dtype={self.dtype}", f"device={self.place.device}"),
                alive=server.alive,
                vitals=server.vitals,
            )

    def _name(self) -> str:
        return self.model.rstrip("/").rsplit("/", maxsplit=1)[-1]

    def _python(self) -> str:
        """The Python that computes; UsageError if it does not exist, or lacks a package."""
        named = self.place.python
        if named is None:
            if missing := missing_packages(_EXTRA):
                raise UsageError(
                    f"the backend `{self.kind}` needs the package `{next(iter(missing))}`",
                    hint=f"{pip_line(_EXTRA)}, or name another environment's Python in "
                    "`place.python`",
                )
            return sys.executable
        # a Path would lose the `./` that tells a file from a command
        found = shutil.which(os.path.expanduser(named))  # noqa: PTH111
        if found is None:
            raise UsageError(
                f"`place.python` is `{named}`, which does not exist",
                hint=f"name the Python of an environment with torch and transformers, or "
                f"{pip_line(_EXTRA)}",
            )
        # not resolved: an environment's Python is a link, and its location selects the environment
        return str(Path(found).absolute())
