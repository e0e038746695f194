"""How a model's replies are drawn: everything that changes a reply is said, nothing is assumed."""

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
