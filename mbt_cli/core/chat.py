"""What goes to a chat endpoint and what comes back, as values."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypedDict

Json = Any
"""A value that `json.loads` can give."""


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """One question put to a model.

    Args:
        key: Request key (hex), see `core/keys.py`; equal keys mean the same request.
        question_id: The question it is about (canned and scripted backends look at it).
        sample: Number of the rollout, trace or vote among those of the question, from 0.
        messages: The conversation so far.
        seed: Seed of attempt 0, 31 bits; each content retry derives a new one.
        body: Everything else of the JSON body: sampling fields, `response_format`, extras.
        purpose: What is asked for, such as `rollout` or `rewrite:mbt_r`; never sent.
    """

    key: str
    question_id: str
    sample: int
    messages: tuple[Message, ...]
    seed: int
    body: Mapping[str, Json]
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one request: a reply, or the reason why there is none.

    `text` is as the server sent it. `failure` is null or a typed reason such as
    `http_400: maximum context length is 2048 tokens`.
    """

    text: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    seed: int | None = None
    attempts: int = 1
    seconds: float = 0.0
    failure: str | None = None


Post = Callable[[dict[str, Json]], Awaitable[tuple[int, Mapping[str, str], bytes]]]
"""Sends a body once and gives status, headers and content of the answer; raises TimeoutError where
no reply came in time, OSError where no connection stood, BrokenReplyError for half an answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible HTTP endpoint that is ready.

    Args:
        base_url: Up to and including `/v1`.
        model: The name the endpoint knows the model by.
        api_key: Bearer token; kept out of representations, logs and artifacts.
        key_name: The environment variable that holds it, for messages.
        token_limit_field: Body field for the token limit, `max_tokens` or `max_completion_tokens`.
        context: Context length in tokens where it is known.
        supports_schema: Whether `response_format` with a JSON schema constrains the reply.
        sends_seed: Whether the endpoint takes `seed`.
        version: What the server says it is, for the lineage.
        flags: The flags it was started with, for the lineage.
        extra_body: Body fields that this endpoint needs to do what the sampling says; a request's
            own fields win over them.
        rest_limit: Token limit to send for `max_tokens = "rest"`; null sends none, so that the
            server gives what its context leaves.
        shape: Turns a body into what the endpoint takes, where it departs from the protocol.
        transport: Another client than mbt's own for this endpoint; takes the seconds that one
            reply may take.
        alive: Raises BackendError with the last log lines once the server behind it has died.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    key_name: str | None = None
    token_limit_field: str = "max_tokens"
    context: int | None = None
    supports_schema: bool = True
    sends_seed: bool = True
    version: str | None = None
    flags: tuple[str, ...] = ()
    extra_body: Mapping[str, Json] = field(default_factory=dict)
    rest_limit: int | None = None
    shape: Callable[[dict[str, Json]], dict[str, Json]] | None = None
    transport: Callable[[float], AbstractAsyncContextManager[Post]] | None = None
    alive: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Responder:
    """A backend that answers in this process: for tests, demos and data made by rule.

    `respond` takes a request and gives a chat completion object as a server would send it.
    """

    respond: Callable[[Request], Mapping[str, Json]]
    version: str | None = None
    supports_schema: bool = True


def completion(
    request: Request, text: str, reasoning: str | None, finish_reason: str | None
) -> Mapping[str, Json]:
    """A chat completion as a server would send it, with words counted as tokens."""
    asked = sum(len(message["content"].split()) for message in request.messages)
    thought = len(reasoning.split()) if reasoning else 0
    message = {"role": "assistant", "content": text, "reasoning": reasoning}
    usage = {
        "prompt_tokens": asked,
        "completion_tokens": len(text.split()) + thought,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}
