"""The JSON body of a request, as one endpoint wants it."""

from dataclasses import dataclass
from typing import Literal

from mbt_cli.core.chat import Endpoint, Json, Request
from mbt_cli.inference.backlog import Ticket


@dataclass(frozen=True, slots=True)
class BodyRules:
    """How a request becomes the JSON body of one endpoint.

    Args:
        max_tokens: Tokens a reply may have; `rest` leaves it to the server.
        retry_max_tokens: The same for a request that is asked again for its content.
        sends_seed: Whether the sampling wants a seed.
        model_id: The model's name for endpoints that do not bring one of their own.
    """

    max_tokens: int | Literal["rest"]
    retry_max_tokens: int | None = None
    sends_seed: bool = True
    model_id: str = ""

    def seed(self, endpoint: Endpoint, request: Request) -> int | None:
        """The seed that goes over the wire; null when none does."""
        return request.seed if self.sends_seed and endpoint.sends_seed else None

    def body(self, endpoint: Endpoint, ticket: Ticket) -> dict[str, Json]:
        """The body; what the manifest says in `request` wins over the rest."""
        request = ticket.request
        body: dict[str, Json] = dict(endpoint.extra_body)
        limit: int | str | None = self.max_tokens
        if ticket.content_attempt and self.retry_max_tokens:
            limit = self.retry_max_tokens
        if limit == "rest":
            limit = endpoint.rest_limit
        if limit is not None:
            body[endpoint.token_limit_field] = limit
        body.update(request.body)
        body["model"] = endpoint.model or self.model_id
        body["messages"] = request.messages
        if (seed := self.seed(endpoint, request)) is not None:
            body["seed"] = seed
        if not endpoint.supports_schema:
            body.pop("response_format", None)
        return endpoint.shape(body) if endpoint.shape else body
