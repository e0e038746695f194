"""What came of sending a request once: a reply, a failure that may pass, or the end of the run."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from mbt_cli.core.chat import Json, Reply
from mbt_cli.core.replies import MalformedReplyError, Sending, reply_of, server_words
from mbt_cli.core.secrets import without_secrets
from mbt_cli.errors import BackendError

_PASSING_STATUS = frozenset({408, 409, 425, 429})
_FATAL_HINTS = {
    401: "a key is wanted: say `api_key_env` in the model's backend, and set the variable it names",
    403: "the key may not use this model or endpoint",
    404: "look at `base_url` (it ends with /v1) and at the model's `id`",
}


class ServerDiedError(BackendError):
    """The server behind the endpoint is gone; what was in flight is back in the backlog."""


class BrokenReplyError(Exception):
    """An answer that broke off before its end, or that is no HTTP."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sending.

    Args:
        reply: With `failure` set when there is no good reply.
        can_pass: Whether the same request may succeed when it is sent again at once.
        refused: The server asked for fewer requests (429).
        unreachable: Nothing came back: no connection, or it broke.
        wait_seconds: What the server's Retry-After says.
    """

    reply: Reply
    can_pass: bool = False
    refused: bool = False
    unreachable: bool = False
    wait_seconds: float | None = None


def outcome_of_body(body: bytes, sending: Sending) -> Outcome:
    """A body that came with status 200."""
    try:
        return Outcome(reply_of(orjson.loads(body), sending))
    except orjson.JSONDecodeError:
        words = f"{len(body)} bytes that are no JSON"
    except MalformedReplyError as error:
        words = str(error)
    return failed("malformed_reply", words, sending, can_pass=True)


def outcome_of_status(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    sending: Sending,
    *,
    address: str,
    key_name: str | None = None,
) -> Outcome:
    """A body that came with another status.

    Args:
        status: The HTTP status, not 200.
        headers: Of the answer.
        body: Of the answer.
        sending: How it was sent.
        address: The endpoint's `base_url`, for messages.
        key_name: The variable whose key was sent, for messages.

    Raises:
        BackendError: No request at all can succeed: the key, the address or the quota is wrong.
    """
    content = _json_or_text(body)
    words = without_secrets(server_words(content))
    if 300 <= status < 400:
        raise BackendError(
            f"`{address}` answered {status}: it sends elsewhere, to "
            f"`{headers.get('Location', 'nowhere')}`",
            hint="write the address that answers itself as `base_url`; it ends with /v1",
        )
    if status in _FATAL_HINTS or _is_out_of_quota(content):
        hint = _FATAL_HINTS.get(status, "look at the account's quota")
        if status == 401 and key_name:
            hint = f"the key in `{key_name}` is not taken: is it whole, and is it this endpoint's?"
        raise BackendError(f"`{address}` answered {status}: {words or 'without a word'}", hint=hint)
    return Outcome(
        _failure(f"http_{status}", words, sending),
        can_pass=status in _PASSING_STATUS or status >= 500,
        refused=status == 429,
        wait_seconds=_seconds(headers.get("Retry-After")),
    )


def failed(
    reason: str, words: str, sending: Sending, *, can_pass: bool, unreachable: bool = False
) -> Outcome:
    """No reply, for a reason of our own naming."""
    return Outcome(_failure(reason, words, sending), can_pass, unreachable=unreachable)


def _failure(reason: str, words: str, sending: Sending) -> Reply:
    return Reply(
        failure=f"{reason}: {words}" if words else reason,
        seed=sending.seed,
        attempts=sending.attempts,
        seconds=sending.seconds,
    )


def _json_or_text(body: bytes) -> Json:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="replace")


def _is_out_of_quota(content: Json) -> bool:
    error = content.get("error") if isinstance(content, dict) else None
    return isinstance(error, dict) and "insufficient_quota" in (
        error.get("code"),
        error.get("type"),
    )


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After header; a date is too rare to be worth reading."""
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
