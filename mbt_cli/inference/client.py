"""Sends one request to an OpenAI-compatible endpoint and says what came of it."""

import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import orjson

from mbt_cli.core.chat import Endpoint, Json, Post
from mbt_cli.core.replies import Sending
from mbt_cli.core.run_settings import RunSettings
from mbt_cli.inference.backlog import Ticket
from mbt_cli.inference.bodies import BodyRules
from mbt_cli.inference.outcomes import Outcome, failed, outcome_of_body, outcome_of_status

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
        except aiohttp.ConnectionTimeoutError as error:
            return failed("connection", str(error), sending(), can_pass=True, unreachable=True)
        except TimeoutError:
            # not sent again in this run: a limit below a slow reply's length multiplies load
            return failed("timeout", "", sending(), can_pass=False)
        except aiohttp.ClientPayloadError as error:
            return failed("malformed_reply", str(error), sending(), can_pass=True)
        except aiohttp.ClientConnectorError as error:
            words = f"{self._endpoint.base_url}: {error.os_error.strerror or error.os_error}"
            return failed("connection", words, sending(), can_pass=True, unreachable=True)
        except (aiohttp.ClientError, OSError) as error:
            words = str(error) or type(error).__name__
            return failed("connection", words, sending(), can_pass=True, unreachable=True)
        if status == 200:
            return outcome_of_body(content, sending())
        return outcome_of_status(
            status, headers, content, sending(), address=self._endpoint.base_url
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


@asynccontextmanager
async def _own_transport(
    endpoint: Endpoint, run: RunSettings, environment: Mapping[str, str]
) -> AsyncIterator[Post]:
    """A pool of connections as wide as `run.concurrency`."""
    url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
    proxy = proxy_for(endpoint.base_url, environment)
    headers = {"Content-Type": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    timeout = aiohttp.ClientTimeout(
        total=run.request_timeout_seconds, sock_connect=run.connect_timeout_seconds
    )
    connector = aiohttp.TCPConnector(limit=run.concurrency, ttl_dns_cache=300)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def post(body: dict[str, Json]) -> tuple[int, Mapping[str, str], bytes]:
            async with session.post(
                url, data=orjson.dumps(body), proxy=proxy, allow_redirects=False
            ) as response:
                return response.status, response.headers, await response.read()

        yield post


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
