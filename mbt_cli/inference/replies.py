"""Parse responses: a chat completion or an error becomes a Reply with a typed failure.

Reasoning is read from `reasoning`, `reasoning_content`, thinking parts of a list content, or an
inline think block, in that order. The text itself is never altered, but for calls of tools, which
follow it in the form of `core/tool_calls.py`. Values of another type than the
protocol's are null, and counted.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import orjson

from mbt_cli.core.chat import Embedding, FirstToken, Json, Likelihood, Reply
from mbt_cli.core.rows import SERVER_ENDED
from mbt_cli.core.secrets import mask, without_secrets
from mbt_cli.core.tool_calls import call_block
from mbt_cli.core.traces import think_block
from mbt_cli.errors import BackendError

_WORDS_KEPT = 500
_TOO_MANY_TOKENS = 1 << 40


@dataclass(frozen=True, slots=True)
class Sending:
    """How a reply was requested.

    Args:
        seed: The seed that was sent; null if none was.
        attempts: Times that the request was sent, including this one.
        seconds: From sending to the complete reply.
    """

    seed: int | None = None
    attempts: int = 1
    seconds: float = 0.0


def result_of(completion: Json, sending: Sending) -> "SendResult":
    """The result of a response with status 200: the first choice of a chat completion.

    Example:
        >>> message = {"content": "<think>Two and two.</think> Four"}
        >>> reply = result_of({"choices": [{"message": message}]}, Sending()).reply
        >>> reply.reasoning, reply.text
        ('Two and two.', '<think>Two and two.</think> Four')
    """
    values = _Values()
    try:
        reply = _reply_of(completion, sending, values)
    except _MalformedError as error:
        return failed("malformed_reply", str(error), sending, can_retry=True)
    return SendResult(reply, unusable=tuple(values.unusable))


class _MalformedError(ValueError):
    """Not a chat completion."""


class _Values:
    """Reads values by their type.

    Unusable ones are null and named in `unusable`, as are texts with lone surrogates, which UTF-8
    cannot express.
    """

    def __init__(self) -> None:
        self.unusable: list[str] = []

    def text(self, value: Json, name: str) -> str | None:
        if not isinstance(value, str):
            self._refuse(value, name)
            return None
        if (clean := _without_surrogates(value)) is not value:
            self.unusable.append(f"{name} (lone surrogates are stored as U+FFFD)")
        return clean or None

    def word(self, value: Json, name: str) -> str | None:
        if isinstance(value, str) and len(value) <= _WORDS_KEPT:
            return self.text(value, name)
        self._refuse(value, name)
        return None

    def count(self, value: Json, name: str) -> int | None:
        if (count := token_count(value)) is None:
            self._refuse(value, name)
        return count

    def fields(self, value: Json, name: str) -> Mapping[str, Json]:
        if isinstance(value, Mapping):
            return value
        self._refuse(value, name)
        return {}

    def _refuse(self, value: Json, name: str) -> None:
        if value is not None:
            self.unusable.append(f"{name} (stored as null)")


def _reply_of(completion: Json, sending: Sending, values: _Values) -> Reply:
    choice, message = _choice_of(completion)
    text, thinking = _content_of(message.get("content"), values)
    if calls := _calls_of(message.get("tool_calls"), values):
        text = "\n".join([*([text] if text else []), *calls])
    finish_reason = values.word(choice.get("finish_reason"), "finish_reason")
    usage = values.fields(completion.get("usage"), "usage")
    details = values.fields(
        usage.get("completion_tokens_details"), "usage.completion_tokens_details"
    )
    reasoning_tokens = details.get("reasoning_tokens")
    if reasoning_tokens is None:
        reasoning_tokens = usage.get("reasoning_tokens")
    cached_tokens = _cached_tokens(usage)
    stated = [values.text(message.get(name), name) for name in ("reasoning", "reasoning_content")]
    reasoning = stated[0] or stated[1] or thinking or inline_reasoning(text or "")
    refusal = values.text(message.get("refusal"), "refusal")
    failure = _failure_of(refusal, text, reasoning, finish_reason)
    if failure == "empty" and finish_reason in SERVER_ENDED:
        raise _MalformedError(f"the server ended the reply: {finish_reason}")
    return Reply(
        text=text,
        reasoning=reasoning,
        finish_reason=finish_reason,
        prompt_tokens=values.count(usage.get("prompt_tokens"), "usage.prompt_tokens"),
        completion_tokens=values.count(usage.get("completion_tokens"), "usage.completion_tokens"),
        reasoning_tokens=values.count(reasoning_tokens, "usage.reasoning_tokens"),
        cached_tokens=values.count(cached_tokens, "usage.cached_tokens"),
        seed=sending.seed,
        attempts=sending.attempts,
        seconds=sending.seconds,
        failure=failure,
    )


_CACHED_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_CACHED = ("prompt_cache_hit_tokens", "cache_read_input_tokens", "cached_tokens")


def _cached_tokens(usage: Mapping[str, Json]) -> Json:
    """Prompt tokens from the provider's cache: as OpenAI says it, then DeepSeek and others.

    Example:
        >>> _cached_tokens({"prompt_tokens_details": {"cached_tokens": 7}})
        7
        >>> _cached_tokens({"prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 2})
        5
    """
    for name in _CACHED_DETAILS:
        details = usage.get(name)
        if isinstance(details, Mapping) and details.get("cached_tokens") is not None:
            return details["cached_tokens"]
    return next((usage[name] for name in _CACHED if usage.get(name) is not None), None)


def inline_reasoning(text: str) -> str | None:
    """The content of the think block that opens `text`; null if there is none, or it is empty.

    Example:
        >>> inline_reasoning("<think>Hm.</think>Yes"), inline_reasoning("<think></think>Yes")
        ('Hm.', None)
    """
    block = think_block(text)
    return (block[0] or None) if block else None


def server_words(body: Json) -> str:
    """The message of an error body, on one line, truncated, and without secrets.

    Example:
        >>> server_words({"error": {"message": "too long"}}), server_words({"detail": "no"})
        ('too long', 'no')
    """
    words = body
    for name in ("error", "message", "detail"):
        if isinstance(words, Mapping) and name in words:
            words = words[name]
    parts = words if isinstance(words, list) else [words]  # FastAPI: [{"loc": [...], "msg": "..."}]
    try:
        shown = "; ".join(str(p.get("msg", p) if isinstance(p, Mapping) else p) for p in parts)
    except RecursionError:
        shown = "a body that is nested too deep to show"
    line = without_secrets(" ".join(shown.split()))  # before it is cut: a part may be left
    return line if len(line) <= _WORDS_KEPT else f"{line[:_WORDS_KEPT]} ..."


def _choice_of(completion: Json) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
    if not isinstance(completion, Mapping):
        raise _MalformedError("the body is not a JSON object")
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        problem = server_words(completion) if "error" in completion else "the body has no choices"
        raise _MalformedError(problem)
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if message is None and isinstance(choice, Mapping) and isinstance(choice.get("text"), str):
        message = {"content": choice["text"]}  # the continuation of a plain text
    if not isinstance(message, Mapping):
        raise _MalformedError("the first choice has no message")
    return choice, message


def _content_of(content: Json, values: _Values) -> tuple[str | None, str | None]:
    """Text and thinking of a content that is null, a string, or a list of typed parts."""
    if content is None or content == "":
        return content, None
    if isinstance(content, str):
        return values.text(content, "content"), None
    if not isinstance(content, list):
        raise _MalformedError(f"the content is a {type(content).__name__}")
    text, thinking = "", ""
    for part in (values.fields(part, "content") for part in content):
        if part.get("type") == "text":
            text += values.text(part.get("text"), "content") or ""
        elif part.get("type") == "thinking":
            thinking += _thinking_of(part.get("thinking"), values)
    return text, thinking or None


def _calls_of(calls: Json, values: _Values) -> list[str]:
    """The calls of tools that a server cut out of the text, as text again."""
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = values.fields(values.fields(call, "tool_calls").get("function"), "tool_calls")
        if (name := values.text(function.get("name"), "tool_calls")) is not None:
            block = call_block(name, function.get("arguments", {}))
            found.append(values.text(block, "tool_calls") or "")
    return found


def _thinking_of(thinking: Json, values: _Values) -> str:
    if not isinstance(thinking, list):
        return values.text(thinking, "thinking") or ""
    parts = (values.fields(part, "thinking") for part in thinking)
    return "".join(values.text(part.get("text"), "thinking") or "" for part in parts)


def _failure_of(
    refusal: str | None, text: str | None, reasoning: str | None, finish: str | None
) -> str | None:
    if finish == "content_filter":
        return f"content_filter: {server_words(refusal)}" if refusal else "content_filter"
    if (text and text.strip()) or reasoning:
        return None
    if refusal:
        return f"refusal: {server_words(refusal)}"
    # a reply that hit the limit before its first visible word is truncated, not failed
    return None if finish == "length" else "empty"


def token_count(value: Json) -> int | None:
    """A number of tokens; null if the value cannot be one.

    The limit keeps sums over all rows within the 64 bits of a column.
    """
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < _TOO_MANY_TOKENS else None


def _without_surrogates(text: str) -> str:
    """The same text, or one with U+FFFD in place of lone surrogates."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


PROMPT_TOO_LONG = "prompt_too_long"
"""Begins the failure of a request that does not fit into the context of the model."""

_TOO_LONG = re.compile(
    r"maximum context|context[_ -](?:length|size|window|limit)|maximum model length|max_model_len"
    r"|(?:prompt|input)[\w ]{0,20} too (?:long|large)|too many (?:input )?tokens"
    r"|input token count|must have (?:less|fewer) than \d+ tokens",
    re.IGNORECASE,
)
_TOO_LONG_STATUS = frozenset({400, 413, 422})
_HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"
_PASSING_STATUS = frozenset({408, 409, 425, 429})
_FATAL_HINTS = {
    401: "the endpoint requires a key: set `api_key_env` in the model's backend, and that variable",
    403: "the key has no access to this model or endpoint",
    404: "check `base_url` (it ends with a version, such as /v1) and the model's `id`",
}


class ServerDiedError(BackendError):
    """The server died; unanswered requests are back in the queue."""


class NotConnectedError(ConnectionError):
    """No connection: the server has not received the request."""


class BrokenReplyError(Exception):
    """A response that broke off, or that is not HTTP."""


class ReplyTooLargeError(Exception):
    """A response larger than `max_reply_megabytes`; the rest of it is not read."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of sending a request once.

    Args:
        reply: With `failure` set if there is no good reply.
        can_retry: Whether the same request may succeed if it is sent again now.
        refused: Whether the server asked for fewer requests or to wait (429, Retry-After).
        unreachable: Whether nothing came back: no connection, or it broke.
        wait_seconds: How long the headers of the server ask to wait.
        unusable: Names of unusable values, with what is stored instead.
        was_sent: Whether the server may have received the request.
    """

    reply: Reply
    can_retry: bool = False
    refused: bool = False
    unreachable: bool = False
    wait_seconds: float | None = None
    unusable: tuple[str, ...] = ()
    was_sent: bool = True


def masked(reply: Reply) -> Reply:
    """The reply with every secret of this process replaced: a server may echo what it was sent."""
    old = (reply.text, reply.reasoning, reply.finish_reason, reply.failure)
    text, reasoning, finish_reason, failure = new = tuple(text and mask(text) for text in old)
    if new == old:
        return reply
    return replace(
        reply, text=text, reasoning=reasoning, finish_reason=finish_reason, failure=failure
    )


def result_of_body(
    body: bytes, sending: Sending, read: Callable[[Json], Json] | None = None
) -> SendResult:
    """The result of a response with status 200.

    Args:
        body: The response's body.
        sending: How the request was sent.
        read: Makes a chat completion of its JSON (`Wire.completion`).
    """
    try:
        completion = _json_of(body)
    except (ValueError, RecursionError):
        words = f"{len(body)} bytes that are not JSON"
        return failed("malformed_reply", words, sending, can_retry=True)
    return result_of(read(completion) if read else completion, sending)


def _json_of(body: bytes) -> Json:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body.decode())  # which reads NaN and halves of a character, as sent


def result_of_status(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    sending: Sending,
    *,
    address: str,
    key_name: str | None = None,
) -> SendResult:
    """The result of a response with another status.

    Args:
        status: The HTTP status.
        headers: The response's headers.
        body: The response's body.
        sending: How the request was sent.
        address: The endpoint's `base_url`, for messages.
        key_name: The variable that holds the key, for messages.

    Raises:
        BackendError: No request can succeed: the key, the address or the quota is wrong.
    """
    content = _json_or_text(body)
    words = server_words(content)
    if 300 <= status < 400:
        raise BackendError(
            f"`{address}` answered {status}: it redirects to "
            f"`{without_secrets(headers.get('Location', 'nowhere'))}`",
            hint="set `base_url` to the address of the endpoint itself; it ends with a version, "
            "such as /v1",
        )
    if _is_wrong_key(content):
        status = 401
    if status in _FATAL_HINTS or _is_out_of_quota(content):
        hint = _FATAL_HINTS.get(status, "check the quota of the account")
        if status == 401 and key_name:
            hint = (
                f"the endpoint rejects the key in `{key_name}`: check that it is complete and right"
            )
        raise BackendError(
            f"`{address}` answered {status}: {words or 'without a message'}", hint=hint
        )
    reason = f"http_{status}"
    if status in _TOO_LONG_STATUS and _TOO_LONG.search(words):
        reason = PROMPT_TOO_LONG
    can_retry = status in _PASSING_STATUS or status >= 500
    wait_seconds = _asked_wait(status, headers, content) if can_retry else None
    return SendResult(
        _failure(reason, words, sending),
        can_retry=can_retry,
        refused=status in (429, _OVERLOADED) or wait_seconds is not None,
        wait_seconds=wait_seconds,
    )


def failed(
    reason: str,
    words: str,
    sending: Sending,
    *,
    can_retry: bool,
    unreachable: bool = False,
    was_sent: bool = True,
) -> SendResult:
    """The result of a request without a reply, for a reason named by mbt."""
    reply = _failure(reason, words, sending)
    return SendResult(reply, can_retry, unreachable=unreachable, was_sent=was_sent)


def _failure(reason: str, words: str, sending: Sending) -> Reply:
    return Reply(
        failure=_without_surrogates(f"{reason}: {words}" if words else reason),
        seed=sending.seed,
        attempts=sending.attempts,
        seconds=sending.seconds,
    )


def _json_or_text(body: bytes) -> Json:
    try:
        return _json_of(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")


def _error_in(content: Json) -> Mapping[str, Json]:
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, dict) else {}


def _is_out_of_quota(content: Json) -> bool:
    """Whether nothing is left to pay with, as OpenAI and Anthropic say it."""
    error = _error_in(content)
    is_said = any(error.get(key) in _NO_MONEY for key in ("code", "type"))
    return is_said or "credit balance is too low" in str(error.get("message"))


def _details_in(content: Json) -> list[Mapping[str, Json]]:
    """What Google's errors say beside their message."""
    details = _error_in(content).get("details")
    return [one for one in details if isinstance(one, dict)] if isinstance(details, list) else []


def _is_wrong_key(content: Json) -> bool:
    """Whether an error with another status than 401 is about the key, as Google says it."""
    return any(one.get("reason") == "API_KEY_INVALID" for one in _details_in(content))


_NO_MONEY = ("insufficient_quota", "billing_error")
_OVERLOADED = 529
_LIMITED = ("Requests", "Tokens", "Input-Tokens", "Output-Tokens")
_RATE_LIMITS = ("X-Ratelimit-{said}-{what}", "Anthropic-Ratelimit-{what}-{said}")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNIT_SECONDS = (86_400, 3_600, 60, 1, 0.001)


def _asked_wait(status: int, headers: Mapping[str, str], content: Json = None) -> float | None:
    """Seconds that a refusal asks to wait: Retry-After, or when a used up rate limit resets.

    Google says it in the body, as a duration.

    Example:
        >>> _asked_wait(429, {"Retry-After-Ms": "1500"})
        1.5
        >>> used_up = {"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "1m2.5s"}
        >>> _asked_wait(429, used_up)
        62.5
        >>> _asked_wait(429, {}, {"error": {"details": [{"retryDelay": "34s"}]}})
        34.0
    """
    if (milliseconds := _seconds(headers.get("Retry-After-Ms"))) is not None:
        return milliseconds / 1000
    if (seconds := _seconds(headers.get("Retry-After"))) is not None or status != 429:
        return seconds
    resets = [
        _until(headers.get(name.format(said="Reset", what=what), ""))
        for name in _RATE_LIMITS
        for what in _LIMITED
        if headers.get(name.format(said="Remaining", what=what), "").strip() == "0"
    ]
    resets += [_until(str(one.get("retryDelay", ""))) for one in _details_in(content)]
    # rounded up: what is nearly reset would be refused again
    return max((max(found, 1.0) for found in resets if found is not None), default=None)


def _until(text: str) -> float | None:
    """Seconds of a duration, or until a time as Anthropic says it: `2026-01-27T12:00:30Z`."""
    if "T" not in text:
        return _duration(text)
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (when - datetime.now(UTC)).total_seconds() if when.tzinfo else None


def _duration(text: str) -> float | None:
    """Seconds of `6m0s`, `12ms` or `20`; null for anything else.

    Example:
        >>> _duration("1h2m3s"), _duration("12ms"), _duration("20"), _duration("soon")
        (3723.0, 0.012, 20.0, None)
    """
    found = _DURATION.fullmatch(text.strip())
    try:
        if found is None or not found[0]:
            return _seconds(text or None)
        parts = zip(found.groups(), _UNIT_SECONDS, strict=True)
        return float(sum(float(value) * unit for value, unit in parts if value))
    except ValueError:  # such as several points
        return None


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After header, a number or a date; null if it is neither, or negative."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            date = datetime.strptime(retry_after.strip(), _HTTP_DATE).replace(tzinfo=UTC)
        except ValueError:
            return None
        seconds = (date - datetime.now(UTC)).total_seconds()
    return seconds if seconds >= 0 else None


# Log-probabilities and embeddings


def first_token_of(body: bytes, sending: Sending) -> SendResult:
    """The likeliest first tokens of a response with status 200, as `FirstToken`.

    Example:
        >>> top = [{"token": "A", "logprob": -0.5}, {"token": "B", "logprob": -1.5}]
        >>> choice = {"message": {}, "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
        >>> first_token_of(orjson.dumps({"choices": [choice]}), Sending()).reply.text
        '{"token":"A","top":[["A",-0.5],["B",-1.5]]}'
    """
    return _scores_of(body, sending, _first_token)


def likelihood_of(body: bytes, sending: Sending, tokens: int) -> SendResult:
    """The last tokens of the prompt of a response with status 200, as `Likelihood`.

    Args:
        body: Of a text completion with vLLM's `prompt_logprobs`.
        sending: How the request was sent.
        tokens: How many.
    """
    return _scores_of(body, sending, lambda choice: _likelihood(choice, tokens))


NO_LOGPROBS = "no_logprobs"
"""Begins the failure of a request for log-probabilities whose response has none."""


def _scores_of(
    body: bytes, sending: Sending, read: Callable[[Mapping[str, Json]], Mapping[str, Any]]
) -> SendResult:
    values = _Values()
    completion: Json = None
    try:
        completion = _json_of(body)
        choice, _ = _choice_of(completion)
        scores = read(choice)
    except (ValueError, RecursionError) as error:
        words = str(error) if isinstance(error, _MalformedError) else "the body is not JSON"
        return failed("malformed_reply", words, sending, can_retry=True)
    except (KeyError, TypeError, IndexError, AttributeError):
        words = f"the response has no usable ones: {server_words(completion)}"
        return failed(NO_LOGPROBS, words, sending, can_retry=False)
    usage = values.fields(completion.get("usage"), "usage")
    reply = Reply(
        text=orjson.dumps(scores).decode(),
        finish_reason="stop",
        prompt_tokens=values.count(usage.get("prompt_tokens"), "usage.prompt_tokens"),
        completion_tokens=values.count(usage.get("completion_tokens"), "usage.completion_tokens"),
        cached_tokens=values.count(_cached_tokens(usage), "usage.cached_tokens"),
        seed=sending.seed,
        attempts=sending.attempts,
        seconds=sending.seconds,
    )
    return SendResult(reply, unusable=tuple(values.unusable))


def embedding_of(body: bytes, sending: Sending) -> SendResult:
    """The vector in a response of `/embeddings` with status 200, as `Embedding`.

    Example:
        >>> body = orjson.dumps({"data": [{"embedding": [0.5, -1]}], "usage": {"prompt_tokens": 3}})
        >>> reply = embedding_of(body, Sending()).reply
        >>> reply.text, reply.prompt_tokens, reply.completion_tokens
        ('{"embedding":[0.5,-1.0]}', 3, 0)
    """
    values = _Values()
    found: Json = None
    try:
        found = _json_of(body)
        (only,) = found["data"]
        vector = [_number(one) for one in only["embedding"]]
        if not vector:
            raise ValueError("no numbers")
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError):
        words = f"not one embedding: {server_words(found)}"
        return failed("malformed_reply", words, sending, can_retry=True)
    usage = values.fields(found.get("usage"), "usage")
    prompt_tokens = values.count(usage.get("prompt_tokens"), "usage.prompt_tokens")
    reply = Reply(
        text=orjson.dumps(Embedding(embedding=vector)).decode(),
        finish_reason="stop",
        prompt_tokens=prompt_tokens,
        completion_tokens=None if prompt_tokens is None else 0,
        seed=sending.seed,
        attempts=sending.attempts,
        seconds=sending.seconds,
    )
    return SendResult(reply, unusable=tuple(values.unusable))


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise TypeError("not a number")
    return float(value)


def _first_token(choice: Mapping[str, Json]) -> FirstToken:
    first = choice["logprobs"]["content"][0]
    top = [(_word(one["token"]), _logprob(one["logprob"])) for one in first["top_logprobs"]]
    if not top:
        raise KeyError("top_logprobs")
    return {"token": _word(first["token"]), "top": sorted(top, key=lambda one: -one[1])}


def _likelihood(choice: Mapping[str, Json], tokens: int) -> Likelihood:
    every = choice["prompt_logprobs"]
    if len(every) <= tokens:
        raise KeyError("prompt_logprobs")
    own = []
    for one in every[-tokens:]:
        (entry,) = one.values() if len(one) == 1 else [_of_prompt(one)]
        own.append((_word(entry.get("decoded_token") or ""), _logprob(entry["logprob"])))
    return {"tokens": [text for text, _ in own], "logprobs": [value for _, value in own]}


def _of_prompt(entries: Mapping[str, Json]) -> Mapping[str, Json]:
    """The token that the prompt has, of several: servers put it first."""
    entry: Mapping[str, Json] = next(iter(entries.values()))
    return entry


def _word(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return _without_surrogates(value)


def _logprob(value: Json) -> float:
    """A log-probability; rounding may make it a little more than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value < 0.01:
        raise TypeError("not a log-probability")
    return min(float(value), 0.0)
