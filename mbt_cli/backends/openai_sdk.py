"""The package `openai` as the client of one endpoint, its typed errors turned into plain ones."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from mbt_cli.core.chat import Json, Post

_POSITIONAL = ("messages", "model")


@asynccontextmanager
async def sdk_transport(
    base_url: str, api_key: str | None, timeout_seconds: float
) -> AsyncIterator[Post]:
    """Sends bodies through the SDK, without its own retries: mbt's journal decides on those."""
    import openai

    async with openai.AsyncOpenAI(
        base_url=base_url, api_key=api_key or "none", max_retries=0, timeout=timeout_seconds
    ) as client:
        create = client.chat.completions.with_raw_response.create

        async def post(body: dict[str, Json]) -> tuple[int, Mapping[str, str], bytes]:
            rest = {name: value for name, value in body.items() if name not in _POSITIONAL}
            try:
                raw = await create(
                    messages=list(body["messages"]), model=body["model"], extra_body=rest
                )
            except openai.APIStatusError as error:
                response = error.response
                return response.status_code, response.headers, response.content
            except openai.APITimeoutError as error:
                raise TimeoutError from error
            except openai.APIConnectionError as error:
                raise ConnectionError(str(error.__cause__ or error)) from error
            return raw.status_code, raw.headers, raw.content

        yield post
