"""aiohttp as the client of one endpoint: for TLS and proxies, its errors turned into plain ones."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import orjson

from mbt_cli.core.chat import Json, Post
from mbt_cli.core.run_settings import RunSettings
from mbt_cli.inference.outcomes import BrokenReplyError


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
