"""How a model is run on this machine: nothing here ever changes a result."""

from typing import Annotated, Literal

from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.model import Settings


class Sampling(Settings):
    """One `[sampling.NAME]` table."""

    temperature: float = Field(ge=0, le=5)
    """Softmax temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: keep the likeliest tokens up to this mass; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all (it is then not sent: some endpoints refuse it)."""
    max_tokens: Annotated[int, Field(gt=0)] | Literal["rest"]
    """Tokens a reply may have, reasoning included; `rest` is what the context leaves."""
    seedable: bool = True
    """Whether a seed is sent with each request."""

    def body(self) -> dict[str, Json]:
        """Fields of a chat request, the token limit and the seed apart."""
        fields: dict[str, Json] = {"temperature": self.temperature, "top_p": self.top_p}
        if self.top_k:
            fields["top_k"] = self.top_k
        return fields


class RunSettings(Settings):
    """A `[run]` or `[models.X.run]` table; the model's keys win over the study's."""

    concurrency: int = Field(default=64, ge=1, le=10_000)
    """Requests in flight at once."""
    request_timeout_seconds: float = Field(default=3600, gt=0)
    """Time for one reply, from sending; long reasoning takes long."""
    connect_timeout_seconds: float = Field(default=30, gt=0)
    """Time for a connection to be made."""
    max_attempts: int = Field(default=6, ge=1, le=100)
    """Times one request is sent before its row fails."""
    server_ready_timeout_seconds: float = Field(default=1200, gt=0)
    """Time a server that mbt starts may take until its first reply."""
    server_restarts: int = Field(default=3, ge=0)
    """Times a server that died is started again within one cell."""
    drain_seconds: float = Field(default=20, ge=0)
    """Time that replies in flight are waited for after a signal to stop."""
    expected_tokens_per_second: float | None = Field(default=None, gt=0)
    """Tokens that its server generates a second, all requests together: `mbt plan` counts on it."""
