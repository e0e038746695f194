"""Sends one request to an OpenAI-compatible endpoint and says what came of it."""

import re
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit

from mbt_cli.core.chat import Endpoint, Post
from mbt_cli.core.replies import Sending
from mbt_cli.core.run_settings import RunSettings
from mbt_cli.inference.backlog import Ticket
from mbt_cli.inference.bodies import BodyRules
from mbt_cli.inference.connections import pooled_transport
from mbt_cli.inference.outcomes import (
    BrokenReplyError,
    Outcome,
    failed,
    outcome_of_body,
    outcome_of_status,
)

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
    from mbt_cli.inference.aiohttp_transport import aiohttp_transport

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
