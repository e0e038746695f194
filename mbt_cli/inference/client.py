"""Sends one request to an OpenAI-compatible endpoint and says what came of it."""

import re
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
import orjson

from mbt_cli.core.chat import Endpoint, Json, Post, Request
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.inference.connections import pooled_transport
from mbt_cli.inference.queue import Ticket
from mbt_cli.inference.replies import (
    BrokenReplyError,
    Outcome,
    Sending,
    failed,
    outcome_of_body,
    outcome_of_status,
)


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


_NO_TLS = re.compile("WRONG_VERSION_NUMBER|wrong version number|record layer failure")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Client:
    """One endpoint, and the way to send a body to it."""

    def __init__(self, endpoint: Endpoint, rules: BodyRules, post: Post) -> None:
        self._endpoint = endpoint
        self._rules = rules
        self._post = post

    async def send(self, ticket: Ticket) -> Outcome:
        """Send a request once.

        Raises:
            BackendError: No request at all can succeed (401, 403, 404, a redirect, no quota).
        """
        body = self._rules.body(self._endpoint, ticket)
        seed = self._rules.seed(self._endpoint, ticket.request)
        started = time.monotonic()

        def sending() -> Sending:
            return Sending(seed, ticket.attempts, time.monotonic() - started)

        try:
            status, headers, content = await self._post(body)
        except TimeoutError:
            # not sent again in this run: a limit below a slow reply's length multiplies load
            return failed("timeout", "", sending(), can_pass=False)
        except BrokenReplyError as error:
            return failed("malformed_reply", str(error), sending(), can_pass=True)
        except OSError as error:
            words = error.strerror or str(error) or type(error).__name__
            if _NO_TLS.search(words):
                words += " (the server there speaks http: begin `base_url` with http://)"
            told = f"{self._endpoint.base_url}: {words}"
            return failed("connection", told, sending(), can_pass=True, unreachable=True)
        if status == 200:
            return outcome_of_body(content, sending())
        return outcome_of_status(
            status,
            headers,
            content,
            sending(),
            address=self._endpoint.base_url,
            key_name=self._endpoint.key_name,
        )


@asynccontextmanager
async def open_client(
    endpoint: Endpoint, rules: BodyRules, run: RunSettings, environment: Mapping[str, str]
) -> AsyncIterator[Client]:
    """A client for an endpoint: mbt's own, or the one that the endpoint brings."""
    if endpoint.transport is not None:
        async with endpoint.transport(run.request_timeout_seconds) as post:
            yield Client(endpoint, rules, post)
        return
    async with _own_transport(endpoint, run, environment) as post:
        yield Client(endpoint, rules, post)


def _own_transport(
    endpoint: Endpoint, run: RunSettings, environment: Mapping[str, str]
) -> AbstractAsyncContextManager[Post]:
    url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
    headers = {"Content-Type": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    proxy = proxy_for(endpoint.base_url, environment)
    if proxy is None and urlsplit(url).scheme == "http":
        return pooled_transport(url, headers, run)
    # a fifth of a second to load, for endpoints out in the world alone

    return aiohttp_transport(url, headers, run, proxy)


def proxy_for(base_url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for an address; none for this machine's own.

    Example:
        >>> proxy_for("https://api.example.com/v1", {"https_proxy": "http://proxy:3128"})
        'http://proxy:3128'
    """
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host in _LOOPBACK:
        return None
    lower = {name.lower(): value for name, value in environment.items()}
    named = {"no": lower.get("no_proxy", "")}
    # absent from the type stubs, though documented by its use in urllib itself
    if urllib.request.proxy_bypass_environment(parts.netloc, named):  # type: ignore[attr-defined]
        return None
    return lower.get(f"{parts.scheme}_proxy") or lower.get("all_proxy") or None


@asynccontextmanager
async def aiohttp_transport(
    url: str, headers: Mapping[str, str], run: RunSettings, proxy: str | None
) -> AsyncIterator[Post]:
    """Posts bodies to one address over a pool of connections as wide as `run.concurrency`."""
    timeout = aiohttp.ClientTimeout(
        total=run.request_timeout_seconds, sock_connect=run.connect_timeout_seconds
    )
    connector = aiohttp.TCPConnector(limit=run.concurrency, ttl_dns_cache=300)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def post(body: dict[str, Json]) -> tuple[int, Mapping[str, str], bytes]:
            try:
                async with session.post(
                    url, data=orjson.dumps(body), proxy=proxy, allow_redirects=False
                ) as response:
                    return response.status, response.headers, await response.read()
            except aiohttp.ConnectionTimeoutError as error:
                raise ConnectionError(str(error)) from error
            except aiohttp.ClientPayloadError as error:
                raise BrokenReplyError(str(error)) from error
            except aiohttp.ClientConnectorError as error:
                raise ConnectionError(error.os_error.strerror or str(error.os_error)) from error
            except aiohttp.ClientError as error:
                raise ConnectionError(str(error) or type(error).__name__) from error

        yield post
