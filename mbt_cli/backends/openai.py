"""An OpenAI-compatible endpoint that is already running: hosted or your own."""

import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from mbt_cli.core.chat import Endpoint, Json, Post, ReadBody, Wants
from mbt_cli.core.origin import LOOPBACK
from mbt_cli.core.plugin import SECRET, VARIABLE, RunOnly
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import UsageError
from mbt_cli.inference.origins import listed_models
from mbt_cli.inference.replies import ReplyTooLargeError
from mbt_cli.interfaces import Backend

_POSITIONAL = ("messages", "prompt", "model")
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


@asynccontextmanager
async def sdk_transport(
    base_url: str,
    api_key: str | None,
    headers: Mapping[str, str],
    timeout_seconds: float,
    read: ReadBody,
) -> AsyncIterator[Post]:
    """Sends requests through the SDK without its retries; mbt retries by its own journal.

    Each request has its own connection: the SDK takes whatever follows a reply on a connection for
    the next one. Redirects are not followed.
    """
    import openai

    class Bounded(openai.DefaultAsyncHttpxClient):
        """Reads no body beyond the limit."""

        async def send(self, request: Any, **options: Any) -> Any:
            response = await super().send(request, **{**options, "stream": True})
            try:
                content = await read(response.aiter_bytes())
            finally:
                await response.aclose()
            headers = {n: v for n, v in response.headers.items() if n.lower() not in _OF_THE_WIRE}
            return type(response)(
                response.status_code, headers=headers, content=content, request=request
            )

    async with openai.AsyncOpenAI(
        base_url=base_url,
        api_key=api_key or "none",
        default_headers={"Connection": "close", **headers},
        max_retries=0,
        timeout=timeout_seconds,
        http_client=Bounded(follow_redirects=False),
    ) as client:
        chat = client.chat.completions.with_raw_response.create
        text = client.completions.with_raw_response.create

        async def post(body: dict[str, Json]) -> tuple[int, Mapping[str, str], bytes]:
            rest = {name: value for name, value in body.items() if name not in _POSITIONAL}
            model, prompt = body["model"], body.get("prompt")
            raw: Any  # two types with the same fields
            try:
                if prompt is not None:
                    raw = await text(prompt=prompt, model=model, extra_body=rest)
                else:
                    raw = await chat(messages=list(body["messages"]), model=model, extra_body=rest)
            except openai.APIStatusError as error:
                response = error.response
                return response.status_code, response.headers, response.content
            except openai.APITimeoutError as error:
                raise TimeoutError from error
            except openai.APIConnectionError as error:
                if isinstance(error.__cause__, ReplyTooLargeError):
                    raise error.__cause__ from None
                raise ConnectionError(str(error.__cause__ or error)) from error
            return raw.status_code, raw.headers, raw.content

        yield post


Header = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$")]
_NEW_LIMIT_HOSTS = ("api.openai.com", ".openai.azure.com")


class OpenAIBackend(Backend):
    """Any server with the chat completions API."""

    can_give: ClassVar[tuple[Wants, ...]] = ("text", "top_logprobs", "likelihood")

    kind: Literal["openai"] = "openai"
    """Names the backend in a manifest."""
    base_url: str
    """Address up to and including `/v1`."""
    declared: str | None = Field(default=None, alias="identity")
    """Name that stands for the address in fingerprints and request keys, for an endpoint whose
    address changes, such as a server in a cluster job: replies from all addresses with this name
    count as replies of one model. Default: the address. For cells that exist, their old address,
    also if only the folder of the model has changed."""
    id: str | None = None
    """The endpoint's name for the model. Default: the model's `id` or name in the manifest."""
    api_key_env: Annotated[str | None, RunOnly] = None
    """Environment variable that holds the API key; omit it for servers without one."""
    headers_env: Annotated[dict[Header, str], RunOnly] = Field(default_factory=dict)
    """More headers, each with the environment variable that holds its value:
    `{ "X-Api-Key" = "MY_KEY" }`."""
    token_limit_field: Annotated[Literal["max_tokens", "max_completion_tokens"] | None, RunOnly] = (
        None
    )
    """Request field of the token limit. Default: `max_completion_tokens` for OpenAI's own hosts,
    `max_tokens` for others."""
    client: Annotated[Literal["own", "sdk", "batch"], RunOnly] = "own"
    """`own` is fast and works almost everywhere. `sdk` sends through the package `openai`, for
    hosted endpoints that require its headers; it is ten times slower. `batch` sends through the
    batch API, which answers within a day at half the price."""
    supports_schema: bool = True
    """Whether the endpoint can constrain replies by a JSON schema."""
    sends_seed: bool = True
    """Whether the endpoint accepts a seed; some hosted ones answer 400 to it."""
    gives_logprobs: Annotated[bool, RunOnly] = True
    """Whether the endpoint knows `logprobs` and `top_logprobs`; many hosted ones do not."""
    gives_likelihoods: Annotated[bool, RunOnly] = False
    """Whether the endpoint gives log-probabilities of given texts: a vLLM server does, by
    `/tokenize` beside `/v1` and `prompt_logprobs`."""
    context: Annotated[int | None, RunOnly] = Field(default=None, gt=0)
    """Context length in tokens (prompt and reply), if known."""

    @model_validator(mode="after")
    def _scores_by_its_own_client(self) -> Self:
        if self.gives_likelihoods and self.client != "own":
            raise ValueError('`gives_likelihoods` needs `client = "own"`')
        return self

    @field_validator("api_key_env", "headers_env")
    @classmethod
    def _names_variables(cls, value: str | dict[str, str] | None) -> str | dict[str, str] | None:
        names = value.values() if isinstance(value, dict) else [value or "UNSET"]
        if not all(re.fullmatch(VARIABLE, name) for name in names):
            raise PydanticCustomError(
                SECRET, "must be the name of the variable that holds the key, not the key"
            )
        return value

    @field_validator("declared")
    @classmethod
    def _is_an_identity(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[^\s@?#]{1,200}", value):
            what = "must be a name without spaces, or an address without user, password and query"
            raise PydanticCustomError(SECRET, what)
        return value

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if "@" in parts.netloc or ";" in parts.path or parts.query or parts.fragment:
            what = (
                "must not contain a user, password, query, fragment or `;`; keys come from the "
                "environment: see `api_key_env` and `headers_env`"
            )
            raise PydanticCustomError(SECRET, what)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            is_bare = "//" not in value and "." in value.partition("/")[0].partition(":")[0]
            near = value if is_bare or value.startswith("localhost") else "localhost:8000/v1"
            raise ValueError(f"is not an http or https URL; write it as `http://{near}`")
        if whole := re.fullmatch(r"(.*?)/(?:chat/)?completions/?", value):
            raise ValueError(f"ends before `/chat/completions`: write `{whole[1]}`")
        if not re.fullmatch(r"[!-~]+", value):
            raise ValueError(
                "has a space or a character that is not ASCII: write it with %XX, and a host as "
                "xn--..."
            )
        labels = parts.hostname.rstrip(".").split(".")
        if not all(1 <= len(label) <= 63 for label in labels) or len(parts.hostname) > 253:
            raise ValueError(f"`{parts.hostname}` is not a host name")
        try:
            is_port = parts.port != 0
        except ValueError:
            is_port = False
        if not is_port:
            raise ValueError(f"`{value}` needs a port from 1 to 65535, or none")
        return value.rstrip("/")

    def gives(self) -> Collection[Wants]:
        unsaid = {"top_logprobs": self.gives_logprobs, "likelihood": self.gives_likelihoods}
        return [one for one in self.can_give if unsaid.get(one, True)]

    def weights_name(self) -> str | None:
        return self.id

    def identity(self) -> Mapping[str, Json]:
        own = {} if self.id is None else {"id": self.id}
        return {"base_url": address_of(self.origin()), **own}

    def origin(self) -> str:
        return self.declared or self.base_url

    def spec(self) -> dict[str, Json]:
        settings = {key: value for key, value in super().spec().items() if key != "declared"}
        return {**settings, "base_url": self.origin()}

    def check(self, environment: Mapping[str, str]) -> None:
        self._key(environment)
        self._headers(environment)

    def warnings(self) -> Iterator[str]:
        if not urlsplit(self.base_url).path.strip("/"):
            url = self.base_url
            yield f"`{url}` has no path; most servers answer at `{url}/v1`"

    def naming(self, model: str) -> Backend:
        return self.model_copy(update={"id": model})

    def price_share(self) -> float:
        return 0.5 if self.client == "batch" else 1.0

    def key_variable(self) -> str | None:
        return self.api_key_env

    def secret_variables(self) -> Collection[str]:
        return {*super().secret_variables(), *self.headers_env.values()}

    def open(self, place: ServerPlace) -> AbstractContextManager[Endpoint]:
        return self._open(place)

    @contextmanager
    def _open(self, place: ServerPlace) -> Iterator[Endpoint]:
        key, headers = self._key(place.environment), self._headers(place.environment)
        yield Endpoint(
            base_url=self.base_url,
            model=self.id or "",
            api_key=key,
            key_name=self.api_key_env,
            headers=headers,
            token_limit_field=self.token_limit_field or self._usual_limit_field(),
            context=self.context,
            supports_schema=self.supports_schema,
            sends_seed=self.sends_seed,
            transport=partial(sdk_transport, self.base_url, key, headers)
            if self.client == "sdk"
            else None,
            models=partial(listed_models, self.base_url, key, headers, place.environment),
            has_identity=self.declared is not None,
            batches=self.client == "batch",
        )

    def _key(self, environment: Mapping[str, str]) -> str | None:
        return None if self.api_key_env is None else self._value(self.api_key_env, environment)

    def _headers(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return {name: self._value(v, environment) for name, v in self.headers_env.items()}

    def _value(self, variable: str, environment: Mapping[str, str]) -> str:
        key = environment.get(variable, "").strip()
        if not key:
            raise UsageError(
                f"`{self.base_url}` needs an API key, and `{variable}` is not set",
                hint=f"export {variable}=..., or add it to `.env`",
            )
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                f"`{variable}` contains a line break or a character that no key has",
                hint="copy the key again, as one line",
            )
        return key

    def _usual_limit_field(self) -> str:
        host = urlsplit(self.base_url).hostname or ""
        return "max_completion_tokens" if host.endswith(_NEW_LIMIT_HOSTS) else "max_tokens"


def address_of(name: str) -> str:
    """An address as it enters request keys, or any other name as it is.

    Host and port of this machine do not count, so that replies of older journals keep their keys;
    the origins of a cell's replies are compared apart from their keys.

    Example:
        >>> address_of("http://localhost:8000/v1"), address_of("https://api.example.com/v1")
        ('loopback/v1', 'https://api.example.com/v1')
    """
    parts = urlsplit(name)
    if parts.hostname in LOOPBACK:
        return f"loopback{parts.path}"
    return urlunsplit((parts.scheme, parts.netloc.lower(), parts.path, "", ""))
